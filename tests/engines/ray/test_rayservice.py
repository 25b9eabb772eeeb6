"""How a service that KubeRay runs is told: by its door where that can be asked, else by its object and its pods."""

from __future__ import annotations

from typing import Any

import pytest

from allranks.engines import silence
from allranks.engines.engine import CanAnswer, NeedsRights, Plan
from allranks.engines.kubernetes.pods import Pod
from allranks.engines.kubernetes.reasons import Events
from allranks.engines.kubernetes.submit import in_order
from allranks.engines.ray import rayservice
from allranks.engines.ray.control import ENGINE
from allranks.engines.ray.rayservice import compose
from allranks.errors import Unreachable
from allranks.node.status import NodeStatus, Status

NONE = Events((), "chat")


def service(*conditions: dict[str, str], **status: Any) -> dict[str, Any]:
    noted = {"allranks.dev/size": "2x4", "allranks.dev/restarts": "3"}
    metadata = {"name": "chat", "namespace": "a", "uid": "u", "annotations": noted, "creationTimestamp": "2026-01-01"}
    return {"kind": "RayService", "metadata": metadata, "status": {"conditions": list(conditions), **status}}


def pod(name: str, address: str = "", **status: Any) -> Pod:
    spec = {"containers": [{"name": "ray-worker", "image": "a"}], "nodeName": "host" if address else ""}
    state = {"phase": "Running", "containerStatuses": [{"name": "ray-worker", "state": {"running": {}}}]}
    metadata = {"name": name, "namespace": "a", "labels": {}}
    return Pod(0, {"metadata": metadata, "spec": spec, "status": {**state, "podIP": address, **status}})


def unschedulable(name: str) -> Pod:
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no GPU."}
    return pod(name, phase="Pending", containerStatuses=[], conditions=[said])


STARTS = {"type": "Ready", "status": "False", "reason": "Initializing", "message": "it is initializing"}
READY = {"type": "Ready", "status": "True", "reason": "NonZeroServeEndpoints"}


def test_a_pod_that_cannot_be_placed_is_the_reason() -> None:
    status = compose(service(STARTS), [pod("head", "10.0.0.1"), unschedulable("w")], NONE, None)
    assert (status.phase, status.world_size) == ("starting", 8)
    assert status.reason == "1 of 2 pods there; w: unschedulable: 0/3 nodes: no GPU"


def test_serves_own_word_comes_before_kuberays() -> None:
    status = compose(service(STARTS), [], NONE, None)
    assert (status.phase, status.reason) == ("pending", "Initializing: it is initializing")
    told = {"applicationStatuses": {"chat": {"serveDeploymentStatuses": {"gang": {"message": "no room\nfor it"}}}}}
    assert compose(service(STARTS, pendingServiceStatus=told), [], NONE, None).reason == "no room"
    assert "does its operator run?" in compose(service(), [], NONE, None).reason


def test_the_door_tells_of_ranks_and_the_pods_where_they_are() -> None:
    record = Status("chat", "ray", "running", nodes=[NodeStatus(0, "w", "its coordinator's", "running")], world_size=4)
    told = {"status": record.to_json()}
    status = compose(service(READY), [pod("w", "10.0.0.2")], NONE, told)
    assert (status.phase, status.nodes[0].address, status.reason) == ("running", "10.0.0.2", "")
    status = compose(service(READY), [pod("w", "10.0.0.2"), unschedulable("v")], NONE, told)
    assert status.reason.startswith("1 of 2 pods there; v: unschedulable")


def test_one_that_is_ready_and_cannot_be_asked_runs() -> None:
    assert compose(service(READY), [], NONE, None).phase == "running"


def test_a_list_goes_by_the_object_alone_and_asks_nobody() -> None:
    nobody: Any = None
    listed = rayservice.ENGINE.listed(nobody, [service(READY), service(STARTS)])
    assert [status.phase for status in listed] == ["running", "pending"]


def test_an_api_server_that_is_away_ends_nobody_who_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    class Away:
        def get(self, *_: object) -> None:
            raise Unreachable("nobody answers at 10.0.0.1:6443\nand more")

    client: Any = Away()
    run = rayservice.RayServiceRun(rayservice.ENGINE, client, service(READY))
    status = run.status()
    (note,) = status.notes
    assert (status.phase, note.splitlines()) == ("running", [note])
    assert note.endswith(": nobody answers at 10.0.0.1:6443")
    monkeypatch.setattr(silence, "PATIENCE", -1.0)
    monkeypatch.setattr(rayservice, "LOOK", -1.0)
    with pytest.raises(Unreachable):
        run.status()


def test_its_object_is_all_that_is_made() -> None:
    document = service()
    assert in_order(Plan("chat", "ray", (document,))) == [document]


def test_the_engine_has_what_a_cluster_needs() -> None:
    assert isinstance(ENGINE, CanAnswer)
    assert isinstance(ENGINE, NeedsRights)
