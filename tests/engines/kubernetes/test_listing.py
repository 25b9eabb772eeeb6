"""Many runs at a glance, from what an API server lists."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks import engines
from allranks.engines.kubernetes import client, delivery
from tests.engines.kubernetes.servers import answering, kubeconfig


@pytest.fixture
def fresh_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    client.connect.cache_clear()
    yield tmp_path / "config"
    client.connect.cache_clear()


def test_a_run_without_pods_is_listed_though_a_list_does_not_say_what_its_objects_are(fresh_client: Path) -> None:
    metadata = {
        "name": "gang", "namespace": "default", "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {delivery.RUN: "gang", delivery.ENGINE: "jobset"}, "annotations": {delivery.SIZE: "2x2"},
    }  # fmt: skip
    body = json.dumps({"kind": "List", "items": [{"metadata": metadata, "spec": {}, "status": {}}]})
    with answering(body.encode(), "application/json") as server:
        kubeconfig(fresh_client, server)
        found = engines.get("jobset").list()
    assert [(one.name, one.phase, one.world_size) for one in found] == [("gang", "pending", 4)] * 2
    assert [one.reason.partition(" for ")[2].partition(" for ")[0] for one in found] == ["its JobSet", "its Job"]
