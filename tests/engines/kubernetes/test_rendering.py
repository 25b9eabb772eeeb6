"""The parts that every engine's plan is made of: merging, pods, admission, and what cannot be."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

from allranks.engines.kubernetes import manifest, render
from allranks.engines.kubernetes.cluster import Cluster
from allranks.engines.kubernetes.manifest import Explained, merge
from allranks.errors import SpecError
from allranks.spec import write
from tests.engines.kubernetes.jobs import ENGINES, job, plan


def pod_of(engine: str, **fields: Any) -> dict[str, Any]:
    """The pod template's spec of the first pod."""
    main = render.main_document(plan(engine, job(**fields)))
    if engine == "jobset":
        return dict(main["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"])
    return dict(main["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"])


def test_the_rules_of_merging_are_as_written() -> None:
    assert doctest.testmod(manifest).failed == 0


def test_a_comment_stays_with_its_field_unless_somebody_else_sets_that() -> None:
    base = Explained({"a": 1, "b": 2}, a="from here", b="from there")
    assert write.documents([merge(base, {"b": 3})]) == "a: 1  # from here\nb: 3\n"


def test_a_manifest_is_merged_last_and_by_names() -> None:
    patch = {"spec": {"replicatedJobs": [{"name": "w", "template": {"spec": {"backoffLimit": 5}}}]}}
    spec = render.main_document(plan("jobset", job(engines={"jobset": {"manifest": patch}})))["spec"]
    inner = spec["replicatedJobs"][0]["template"]["spec"]
    assert (inner["backoffLimit"], inner["completions"], len(spec["replicatedJobs"])) == (5, 3, 1)


def test_a_manifest_that_names_a_kind_changes_that_document() -> None:
    patch = {"kind": "TrainingRuntime", "spec": {"template": {"spec": {"failurePolicy": {"maxRestarts": 9}}}}}
    runtime = plan("trainjob", job(engines={"trainjob": {"manifest": patch}})).documents[-2]
    assert runtime["spec"]["template"]["spec"]["failurePolicy"]["maxRestarts"] == 9


@pytest.mark.parametrize(
    "patch", [{"metadata": {"name": "other"}}, {"metadata": {"labels": {"allranks.dev/run": None}}}, {"kind": "Pod"}]
)
def test_a_manifest_that_would_hide_the_run_is_refused(patch: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"^engines\.jobset\.manifest"):
        plan("jobset", job(engines={"jobset": {"manifest": patch}}))


def test_a_pod_may_be_changed_in_one_place_on_every_engine() -> None:
    security = {"runAsUser": 1000, "runAsNonRoot": True}
    for engine in ("jobset", "pytorchjob"):
        pod = pod_of(
            engine, pod={"securityContext": security}, container={"securityContext": {"readOnlyRootFilesystem": True}}
        )
        assert pod["securityContext"] == security
        locked = {"capabilities": {"add": ["IPC_LOCK"]}}  # for the classic job's RDMA device
        assert pod["containers"][0]["securityContext"] == {**locked, "readOnlyRootFilesystem": True}
        assert {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]} >= {"/allranks", "/run/allranks"}


def test_a_lost_node_is_given_up_soon_unless_the_job_says_otherwise() -> None:
    lost = "node.kubernetes.io/unreachable"
    own = {"key": lost, "operator": "Exists", "effect": "NoExecute", "toleration_seconds": 600}
    found = pod_of("jobset", schedule={"tolerations": [own]})["tolerations"]
    assert [(entry["key"].partition("/")[2], entry["tolerationSeconds"]) for entry in found] == [
        ("unreachable", 600),
        ("not-ready", 5),
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_job_without_an_image_is_told_what_to_write(engine: str) -> None:
    with pytest.raises(SpecError, match=rf"^image: engine {engine} runs containers; say which, such as "):
        plan(engine, job("kind: Job\nname: a\nrun: x"))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_mpirun_needs_of_an_image_is_noted_on_every_engine(engine: str) -> None:
    told = "launcher mpirun: the image needs Open MPI's mpirun, and OpenSSH's ssh and sshd"
    assert told in plan(engine, job(launcher="mpirun")).notes
    assert told not in plan(engine, job()).notes


@pytest.mark.parametrize("gang", ["kueue", "kai"])
def test_who_admits_by_queues_must_be_told_one(gang: str) -> None:
    with pytest.raises(SpecError, match=f"^schedule.gang {gang}: .* set schedule.queue"):
        plan("jobset", job(schedule={"gang": gang}))


def test_gang_auto_takes_what_the_cluster_has() -> None:
    made = plan("jobset", job(), Cluster(gang="volcano"))
    assert [document["kind"] for document in made.documents] == ["ConfigMap", "Secret", "PodGroup", "JobSet"]
    assert [document["kind"] for document in plan("jobset", job(), Cluster(gang="kueue")).documents][2:] == ["JobSet"]


def test_mpirun_cannot_start_the_agents_that_start_mpirun() -> None:
    with pytest.raises(SpecError, match=r"^engines\.mpijob\.start: mpirun has mpirun start the agents"):
        plan("mpijob", job(launcher="mpirun", engines={"mpijob": {"start": "mpirun"}}))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"env_from": ["secret/token"]}, "env_from: the container of runtime torch cannot be given it"),
        ({"schedule": {"priority": "high"}}, "schedule.priority: a TrainJob cannot change priorityClassName"),
        ({"pod": {"hostNetwork": True}}, "pod.hostNetwork: a TrainJob cannot change hostNetwork"),
        ({"container": {"imagePullPolicy": "Never"}}, "container.imagePullPolicy: the container of runtime torch"),
    ],
)
def test_what_an_existing_runtime_cannot_be_given_is_an_error(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError) as error:
        plan("trainjob", job(engines={"trainjob": {"runtime": "torch"}}, **fields))
    assert str(error.value).startswith(told)
    assert str(error.value).endswith("so that the run has a runtime of its own")


def test_what_a_runtime_cannot_be_given_by_trainer_2_1_is_an_error() -> None:
    runtime = {"trainjob": {"runtime": "torch"}}
    of_2_1 = Cluster(patches="podTemplateOverrides")
    with pytest.raises(SpecError, match=r"^container\.securityContext, by which RDMA may lock memory: the container"):
        plan("trainjob", job(engines=runtime), of_2_1)
    with pytest.raises(SpecError, match=r"^pod\.securityContext: .* \(by podTemplateOverrides\)"):
        plan("trainjob", job(engines=runtime, resources={}, pod={"securityContext": {"runAsUser": 1000}}), of_2_1)


@pytest.mark.parametrize("engine", ENGINES)
def test_more_than_a_configmap_holds_is_refused_with_both_sizes(engine: str) -> None:
    with pytest.raises(SpecError, match=r"a ConfigMap, which holds 1048576 bytes; with the agent itself they are 1\d+"):
        plan(engine, job(env={f"A{number}": "x" * 100_000 for number in range(8)}))
