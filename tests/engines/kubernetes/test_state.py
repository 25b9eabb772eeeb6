"""How a run stands, from what the API server and the coordinator tell, for what no test can do to a cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from allranks.engines.kubernetes import delivery
from allranks.engines.kubernetes.pods import Pod
from allranks.engines.kubernetes.reasons import Events, told, why_waiting
from allranks.engines.kubernetes.state import Sight, compose, listed
from allranks.node.cause import Cause
from allranks.node.status import NodeStatus, Status

FAILED = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "too many"}


def ago(seconds: float) -> str:
    return (datetime.now(timezone.utc) - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def main(*conditions: dict[str, Any]) -> dict[str, Any]:
    noted = {delivery.SIZE: "2x2", delivery.RESTARTS: "3"}
    metadata = {"name": "gang", "namespace": "ns", "uid": "1", "annotations": noted, "creationTimestamp": ago(60)}
    return {"kind": "JobSet", "metadata": metadata, "spec": {}, "status": {"conditions": list(conditions)}}


def pod(node: int, state: dict[str, Any], **more: Any) -> Pod:
    metadata = {"name": f"gang-{node}", "namespace": "ns", "uid": f"u{node}", **more}
    container = {"name": "ranks", "state": state}
    return Pod(node, {
        "metadata": metadata, "spec": {"nodeName": f"host-{node}", "containers": [{"name": "ranks", "image": "i"}]},
        "status": {"phase": "Running", "conditions": [], "containerStatuses": [container]},
    })  # fmt: skip


def test_a_pod_that_stays_on_a_lost_node_is_told_with_the_way_to_free_it() -> None:
    lost = pod(1, {"running": {}}, deletionTimestamp=ago(60))
    lost.raw["status"]["conditions"] = [{"type": "DisruptionTarget", "reason": "DeletionByTaintManager"}]
    assert why_waiting(lost, Events((), "gang")) == (
        "it stays Terminating because node host-1 is lost; free it with: "
        "kubectl -n ns delete pod gang-1 --grace-period=0 --force"
    )


def test_a_sidecar_is_neither_the_ranks_container_nor_waited_for() -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "not found"}
    one = pod(1, {"waiting": waiting})
    ours = {**one.spec["containers"][0], "volumeMounts": [{"name": "allranks", "mountPath": delivery.CODE}]}
    one.spec["containers"] = [{"name": "proxy", "image": "p"}, ours]
    one.spec["initContainers"] = [{"name": "mesh", "image": "m", "restartPolicy": "Always"}]
    begun = {"name": "mesh", "started": True, "state": {"running": {}}}
    one.raw["status"]["initContainerStatuses"] = [begun]
    assert one.container == "ranks"
    assert why_waiting(one, Events((), "gang")) == "image i cannot be pulled: not found"
    begun["started"] = False
    assert why_waiting(one, Events((), "gang")) == "init container mesh is running"


def with_proxy(node: int, ended: float, record: Status) -> Pod:
    """A pod whose ranks' container ended so many seconds ago, and whose proxy has not noticed."""
    one = pod(node, {"terminated": {"exitCode": 0, "finishedAt": ago(ended), "message": json.dumps(record.to_json())}})
    one.raw["status"]["containerStatuses"].append({"name": "proxy", "state": {"running": {}}})
    return one


def test_a_container_that_runs_on_after_the_ranks_is_named() -> None:
    record = Status("gang", "jobset", phase="succeeded", exit_code=0)
    pods = {node: with_proxy(node, 20, record) for node in range(2)}
    status = compose(Sight("jobset", main(), pods))
    assert (status.phase, status.exit_code) == ("succeeded", 0)
    assert status.notes == [
        "the ranks have ended, but container proxy of pod gang-0 and those of 1 more has not, which keeps JobSet gang "
        "from ending; end it with: allranks cancel gang"
    ]
    assert not compose(Sight("jobset", main(FAILED), pods)).notes  # it has ended all the same


def test_a_container_beside_the_ranks_has_a_moment_to_end() -> None:
    record = Status("gang", "jobset", phase="succeeded", exit_code=0)
    assert not compose(Sight("jobset", main(), {node: with_proxy(node, 2, record) for node in range(2)})).notes
    running = {0: with_proxy(0, 20, record), 1: pod(1, {"running": {}})}
    assert not compose(Sight("jobset", main(), running)).notes


def test_pods_that_pod_security_lets_in_nowhere_are_told_what_to_set() -> None:
    message = (
        'Error creating: pods "gang-w-0-0-x" is forbidden: violates PodSecurity "restricted:latest": '
        'allowPrivilegeEscalation != false (container "ranks" must set securityContext.allowPrivilegeEscalation=false)'
        ', runAsNonRoot != true (pod or container "ranks" must set securityContext.runAsNonRoot=true), '
        'restricted volume types (volume "volume-0" uses restricted volume type "hostPath")'
    )
    assert told({"reason": "FailedCreate", "message": message, "metadata": {}}) == (
        "its namespace's Pod Security level restricted lets in no such pods: must set "
        "securityContext.allowPrivilegeEscalation=false, must set securityContext.runAsNonRoot=true, "
        'restricted volume types (volume "volume-0" uses restricted volume type "hostPath"); '
        "set that in the spec's 'container' and 'pod'"
    )


@pytest.mark.parametrize("pod", ["gang-w-0-0-x7k2p", "gang-w-0-0-"])
def test_pods_that_are_refused_are_told_in_the_same_words_whatever_their_names(pod: str) -> None:
    message = (
        f'Error creating: pods "{pod}" is forbidden: maximum memory usage per Container is 100Mi, but limit is 1Gi'
    )
    assert told({"reason": "FailedCreate", "message": message, "metadata": {}}) == (
        "its pods are refused: maximum memory usage per Container is 100Mi, but limit is 1Gi"
    )


def test_a_container_killed_for_memory_is_told_the_limit_that_it_had() -> None:
    one = pod(0, {"terminated": {"exitCode": 137, "reason": "OOMKilled"}})
    killed = "its container was killed for using more memory than"
    assert why_waiting(one, Events((), "gang")) == f"{killed} its pod or host has (OOMKilled)"
    one.ranks["resources"] = {"limits": {"memory": "8Mi"}}  # a LimitRange's, where the spec asks for none
    assert why_waiting(one, Events((), "gang")) == f"{killed} its limit of 8Mi (OOMKilled)"


def test_an_eviction_is_told_with_what_it_was_for() -> None:
    left = "node 0: its pod gang-0 was deleted or evicted (SIGTERM)"
    record = Status("gang", "jobset", "failed", left, causes=[Cause(0, "node_lost", "", left, node=0)], exit_code=1)
    evicted = pod(0, {"terminated": {"exitCode": 143}})
    why = 'Usage of EmptyDir volume "scratch" exceeds the limit "1Mi".'
    evicted.raw["status"].update(phase="Failed", reason="Evicted", message=why)
    status = compose(Sight("jobset", main(FAILED), {0: evicted}, record=record))
    assert status.reason == status.causes[0].message == f"{left}: Evicted: {why}"
    again = compose(Sight("jobset", main(FAILED), {0: evicted}, record=status), status)
    assert (again.reason, again.causes) == (status.reason, status.causes)


def test_causes_of_a_coordinator_that_lost_its_pod_are_kept() -> None:
    before = Status("gang", "jobset", causes=[Cause(0, "signal", "", "rank 1 was killed", rank=1)])
    record = Status("gang", "jobset", "running", causes=[Cause(1000, "node_lost", "", "node 0 was lost", node=0)])
    pods = {0: pod(0, {"running": {}}), 1: pod(1, {"running": {}})}
    status = compose(Sight("jobset", main(), pods, record=record), before)
    assert [cause.attempt for cause in status.causes] == [0, 1000]


def test_a_set_made_anew_is_no_second_cause_where_the_first_was_seen() -> None:
    seen = Status("gang", "jobset", attempt=0, causes=[Cause(0, "node_lost", "", "node 1: its agent left", node=1)])
    gathering = Status("gang", "jobset", attempt=999, causes=[Cause(999, "node_lost", "", "all pods made anew")])
    record = replace(gathering, attempt=1000)
    first = compose(Sight("jobset", main(), record=gathering), seen)
    again = compose(Sight("jobset", main(), record=record), first)
    assert [cause.attempt for cause in first.causes] == [cause.attempt for cause in again.causes] == [0]
    went_on = Status("gang", "jobset", attempt=1, causes=seen.causes)
    assert [one.attempt for one in compose(Sight("jobset", main(), record=record), went_on).causes] == [0, 999]


def test_the_coordinator_says_who_is_missing_and_the_pod_says_why() -> None:
    nodes = [
        NodeStatus(0, "a", phase="ready"),
        NodeStatus(1, "b", phase="pending", reason="its agent has not dialled in"),
    ]
    record = Status("gang", "jobset", "pending", "waiting for node 1", nodes=nodes)
    waiting = pod(1, {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}})
    status = compose(Sight("jobset", main(), {0: pod(0, {"running": {}}), 1: waiting}, record=record))
    assert status.reason == "waiting for node 1; gang-1: image i cannot be pulled: not found"


def test_where_operators_deleted_the_pods_the_object_tells_the_end() -> None:
    running = Status("gang", "mpijob", "running", attempt=4, causes=[Cause(3, "signal", "", "rank 1 was killed")])
    status = compose(Sight("mpijob", main(FAILED)), running)
    assert (status.phase, status.reason, status.attempt) == ("failed", "BackoffLimitExceeded: too many", 4)
    assert status.conditions == ["Failed (BackoffLimitExceeded)"]


STARTS_NOT = 'OCI runtime create failed: unable to start container process: exec: "python9": executable file not found'
NO_PYTHON = "image i has no python9, which allranks' agent needs (3.8 or newer): take one that has it"


@pytest.mark.parametrize("first", [{"waiting": {"reason": "ContainerCreating"}}, {"terminated": {"exitCode": 128}}, {}])
def test_of_a_gang_that_never_ran_the_pod_tells_that_failed_not_one_that_is_deleted_for_it(first: Any) -> None:
    failed = pod(1, {"terminated": {"exitCode": 128, "message": STARTS_NOT}})
    status = compose(Sight("jobset", main(FAILED), {0: pod(0, first, deletionTimestamp=ago(1)), 1: failed}))
    assert status.reason == f"no rank ever ran: {NO_PYTHON}; BackoffLimitExceeded: too many"


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (f"Error: {STARTS_NOT}", NO_PYTHON),
        ('MountVolume.SetUp failed for volume "v": failed to sync configmap cache: timed out waiting for the condition',
         "its container is being created on host-0"),
        ('MountVolume.SetUp failed for volume "v": configmap "c" not found',
         "configmap c is not there, and a volume needs it"),
        ("no space left on device", "Failed: no space left on device"),
    ],
)  # fmt: skip
def test_what_kubelet_says_of_a_pod_that_is_being_created_is_told_as_of_one_that_has_ended(
    message: str, why: str
) -> None:
    about = {"kind": "Pod", "name": "gang-0"}
    said = {"metadata": {}, "involvedObject": about, "reason": "Failed", "message": message}
    creating = pod(0, {"waiting": {"reason": "ContainerCreating"}})
    assert why_waiting(creating, Events([said], "gang")) == why


def test_a_record_that_a_container_left_is_the_verdict() -> None:
    left = '{"name": "gang", "engine": "jobset", "phase": "cancelled", "reason": "by hand", "exit_code": 143}'
    ended = {"terminated": {"exitCode": 42, "message": left}}
    status = compose(Sight("jobset", main(FAILED), {1: pod(1, ended)}))
    assert (status.phase, status.reason, status.exit_code) == ("cancelled", "by hand", 143)
    assert [node.phase for node in status.nodes] == ["ended", "ended"]


def test_a_list_tells_the_phase_of_the_pods_not_of_what_the_operator_counts() -> None:
    active = main()
    active["status"]["replicatedJobsStatus"] = [{"active": 1}]
    waiting = pod(1, {})
    waiting.raw["status"] = {
        "phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                                            "message": "0/3 nodes are available: 3 Insufficient cpu."}],
    }  # fmt: skip
    running = {node: pod(node, {"running": {}}) for node in range(2)}
    some, whole, none, unknown = ({1: waiting}, running, {0: pod(0, {"running": {}}), 1: waiting}, None)
    for pods, phase in ((some, "pending"), (whole, "running"), (none, "starting"), (unknown, "running")):
        told = listed("jobset", active, pods)
        assert told.phase == phase
        if pods is not None and phase != "running":
            composed = compose(Sight("jobset", active, pods))
            assert (told.phase, told.reason) == (composed.phase, composed.reason)


UNSUSPENDED = {"type": "Suspended", "status": "False", "reason": "Resumed"}


@pytest.mark.parametrize(
    ("since", "conditions", "spec", "pods", "told"),
    [
        (60, [], {}, {}, True),
        (5, [], {}, {}, False),
        (60, [], {"suspend": True}, {}, False),
        (60, [{**UNSUSPENDED, "lastTransitionTime": 5}], {}, {}, False),
        (60, [{**UNSUSPENDED, "lastTransitionTime": 40}], {}, {}, True),
        (60, [], {}, {0: ("volcano", "")}, False),
        (60, [], {}, {0: ("default-scheduler", "")}, True),
        (60, [], {}, {0: ("volcano", "host-0")}, True),
    ],
    ids=[
        "nobody makes its pods", "it is young", "a queue holds it back", "a queue has let it in just now",
        "a queue has let it in long ago", "its scheduler has a queue", "its scheduler has none",
        "its container is not there though it has a host",
    ],
)  # fmt: skip
def test_a_gang_that_should_have_started_is_told_where(
    since: float, conditions: list[dict[str, Any]], spec: Any, pods: dict[int, tuple[str, str]], told: bool
) -> None:
    dated = [{**one, "lastTransitionTime": ago(one["lastTransitionTime"])} for one in conditions]
    found = main(*dated)
    found["spec"] = spec
    found["metadata"]["annotations"][delivery.START] = "20"
    found["metadata"]["creationTimestamp"] = ago(since)
    there = {node: pod(node, {"waiting": {"reason": "ContainerCreating"}}) for node in pods}
    for node, (scheduler, host) in pods.items():
        there[node].raw["spec"].update(schedulerName=scheduler, nodeName=host)
        there[node].raw["status"]["phase"] = "Pending"
    sight = Sight("jobset", found, there, queue="it waits" if spec else "")
    assert ("longer than failure.start_timeout (20 s)" in compose(sight).reason) is told
    assert "longer than" not in compose(replace(sight, followed=True)).reason  # who follows it ends it
