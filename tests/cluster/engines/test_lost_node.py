"""A node without power: with ``failure.force_delete`` its gang is back, without it the way out is told."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import faults
from tests.cluster.cluster import Cluster
from tests.cluster.engines.conftest import ENGINES, Space
from tests.cluster.engines.kubectl import kubectl
from tests.cluster.engines.test_gangs import STEPS, cancelled, first_steps, python

pytestmark = pytest.mark.long

APART = {
    "topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"allranks.dev/run": "gang"}},
    }],
}  # fmt: skip


@pytest.fixture
def lost(cluster: Cluster) -> Iterator[list[str]]:
    """Nodes that a test has taken the power from; they have it again afterwards."""
    names: list[str] = []
    yield names
    for name in names:
        faults.power_on(cluster, name)
        kubectl("wait", "--for=condition=Ready", f"node/{name}", "--timeout=50s")


def lose(space: Space, status: dict[str, Any], node: int, lost: list[str]) -> float:
    pod = status["nodes"][node]["name"]
    lost.append(kubectl("-n", space.name, "get", "pod", pod, "-o", "jsonpath={.spec.nodeName}"))
    began = time.time()
    faults.power_off(space.cluster, lost[-1])
    return began


@pytest.mark.parametrize("node", [1, 0])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_gang_that_may_gives_up_what_a_lost_node_holds(space: Space, engine: str, node: int, lost: list[str]) -> None:
    failure = {"grace": "5s", "restarts": 2, "start_timeout": "120s", "force_delete": True}
    space.start(engine, space.spec(run=python(STEPS), failure=failure, pod=APART))
    status = space.until(lambda status: status["phase"] == "running")
    began = lose(space, status, node, lost)
    status = space.until(lambda status: status["attempt"] > 0 and status["phase"] == "running", seconds=180)
    back = max(first_steps(space, status["attempt"])) - began
    print(f"{engine}: power of node {node} lost, all stepping again after {back:.1f} s, {status['causes']}")
    assert {cause["kind"] for cause in status["causes"]} == {"node_lost"}
    assert cancelled(space)


@pytest.mark.parametrize("engine", ["jobset", "mpijob", "pytorchjob"])
def test_without_the_right_status_tells_how_to_free_it(space: Space, engine: str, lost: list[str]) -> None:
    failure = {"grace": "2s", "restarts": 2, "start_timeout": "300s"}
    space.start(engine, space.spec(run=python(STEPS), failure=failure, pod=APART))
    status = space.until(lambda status: status["phase"] == "running")
    began = lose(space, status, 1, lost)
    status = space.until(lambda status: "free it with: kubectl" in status["reason"], seconds=180)
    print(f"{engine}: told after {time.time() - began:.1f} s: {status['reason']}")
    assert f"node {lost[0]} is lost" in status["reason"]
    for command in status["reason"].partition("free it with: ")[2].split(" && "):
        kubectl(*shlex.split(command)[1:])
    space.until(lambda status: status["attempt"] > 0 and status["phase"] == "running", seconds=120)
