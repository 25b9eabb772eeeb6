"""What who follows a run is told between two looks."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from allranks.engines.kubernetes import kept
from allranks.engines.kubernetes import watch as watching
from allranks.engines.kubernetes.pods import Pod
from allranks.engines.kubernetes.state import Sight
from allranks.node.status import Status
from tests.engines.kubernetes.test_state import main, pod


class Lines:
    """What a command in node 0's container prints; the newest of them is the one that is read."""

    made: list[Lines]

    def __init__(self, *_: Any) -> None:
        self.newest, self.ended = "", False
        self.made.append(self)

    def is_alive(self) -> bool:
        return not self.ended

    def close(self) -> None:
        self.ended = True


@pytest.mark.parametrize(("uid", "phase"), [("u0", "running"), ("another", "starting")])
def test_a_record_holds_until_its_own_pod_tells_another(monkeypatch: pytest.MonkeyPatch, uid: str, phase: str) -> None:
    Lines.made = []
    found = {**main(), "apiVersion": "jobset.x-k8s.io/v1alpha2"}
    pods = {0: pod(0, {"running": {}}), 1: pod(1, {"running": {}})}
    monkeypatch.setattr(watching, "Lines", Lines)
    monkeypatch.setattr(watching, "glance", lambda *_: Sight("jobset", found, dict(pods)))
    monkeypatch.setattr(kept, "of", lambda *_: None)
    monkeypatch.setattr(kept, "remember", lambda *_: None)
    client: Any = SimpleNamespace(get=lambda *_: found, access=SimpleNamespace(context="c"))
    watch = watching.Watch(client, "jobset", found, lambda _: 0)
    watch.users = 1
    Lines.made[-1].newest = json.dumps(Status("gang", "jobset", "running", world_size=4).to_json())
    assert watch.status().phase == "running"
    Lines.made[-1].ended = True  # its container is ending, or somebody has cut the line
    pods[0] = Pod(0, {**pods[0].raw, "metadata": {**pods[0].raw["metadata"], "uid": uid}})
    watch._look()
    assert (len(Lines.made), watch.status().phase) == (2, phase)
    watch.close()
