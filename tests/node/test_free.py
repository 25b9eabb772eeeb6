"""Pods of a lost Kubernetes node are given up: the run's own, once, and only what the cluster itself calls lost."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from allranks.node.account import Account
from allranks.node.free import COUNTED, LostPods, is_lost
from tests.node.api import Server

LOST: dict[str, Any] = {
    "metadata": {"name": "gang-1", "uid": "u1", "deletionTimestamp": "2026-01-02T03:04:05Z"},
    "spec": {"nodeName": "n2"},
    "status": {
        "phase": "Running",
        "conditions": [
            {"type": "Ready", "status": "False"},
            {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"},
        ],
    },
}
"""As the cluster tells of a pod whose node has lost its power."""


def changed(**parts: Any) -> dict[str, Any]:
    pod = deepcopy(LOST)
    for name, change in parts.items():
        part = pod["status"]["conditions"][0 if name == "ready" else 1] if name in ("ready", "evicted") else pod[name]
        part.update(change)
    return pod


def test_a_pod_that_was_evicted_from_a_node_that_is_not_ready_is_lost() -> None:
    assert is_lost(LOST)


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(changed(metadata={"deletionTimestamp": None}), id="nobody deletes it"),
        pytest.param(changed(evicted={"reason": "EvictionByEvictionAPI"}), id="its node is drained"),
        pytest.param(changed(ready={"status": "True"}), id="its node is there"),
        pytest.param(changed(ready={"reason": "ContainersNotReady"}), id="its kubelet speaks of it"),
        pytest.param(changed(status={"conditions": []}), id="nothing is known of it"),
    ],
)
def test_any_other_pod_is_left_alone(pod: dict[str, Any]) -> None:
    assert not is_lost(pod)


@pytest.fixture
def lost(account: Account) -> LostPods:
    return LostPods(account, "gang")


def test_a_lost_pod_is_deleted_once_and_only_that_very_pod(server: Server, lost: LostPods) -> None:
    server.pods = [LOST, changed(ready={"status": "True"}, metadata={"name": "gang-0", "uid": "u0"})]
    assert lost.free() == ["pod gang-1 was given up: node n2 is lost"]
    assert lost.free() == []
    look, delete, *again = server.asked
    assert look[1] == "/api/v1/namespaces/team/pods?labelSelector=allranks.dev/run%3Dgang&resourceVersion=0"
    only = {"gracePeriodSeconds": 0, "preconditions": {"uid": "u1"}}
    assert delete == ("DELETE", "/api/v1/namespaces/team/pods/gang-1", only)
    assert [method for method, _, _ in again] == ["GET"]


def test_a_jobs_pod_is_said_to_have_failed_first(server: Server, lost: LostPods) -> None:
    server.pods = [changed(metadata={"finalizers": [COUNTED]})]
    lost.free()
    change = ("PATCH", "/api/v1/namespaces/team/pods/gang-1/status", {"status": {"phase": "Failed"}})
    assert server.asked[1] == change
    assert server.asked[2][0] == "DELETE"


def test_what_it_may_not_do_is_an_error_with_the_servers_words(server: Server, lost: LostPods) -> None:
    server.code = 403
    with pytest.raises(OSError, match=r"refused GET of pods \(403\): no right to do that"):
        lost.free()
