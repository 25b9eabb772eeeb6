"""Kueue at the door: a gang is made suspended, admitted as a whole, and told why where it is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from string import Template

import pytest
from ruamel.yaml import YAML

from tests.cluster.engines.conftest import ENGINES, Space
from tests.cluster.engines.kubectl import apply, kubectl

QUEUE = Path(__file__).parents[1] / "smoke" / "kueue.yaml"
"""One CPU for all gangs of the test's namespace."""


@pytest.fixture
def queue(space: Space) -> Iterator[str]:
    for document in YAML(typ="safe", pure=True).load_all(Template(QUEUE.read_text()).substitute(namespace=space.name)):
        apply(space.name, document)
    try:
        yield "research"
    finally:
        kubectl("delete", "clusterqueue,resourceflavor", space.name, "--wait=false")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_gang_waits_for_its_quota_at_its_place_and_runs_when_there_is_room(
    space: Space, queue: str, engine: str
) -> None:
    def start(name: str, cpu: str) -> None:
        schedule = {"namespace": space.name, "queue": queue, "gang": "kueue"}
        space.start(engine, space.spec(name=name, resources={"cpu": cpu}, schedule=schedule))

    start("first", "300m")
    space.until(lambda status: status["phase"] == "running", "first")
    start("second", "300m")
    reason = space.until(lambda status: "insufficient" in status["reason"], "second")["reason"]
    assert f"waits in queue {queue} at place 1 of 1" in reason
    assert "insufficient unused quota for cpu" in reason
    start("greedy", "800m")
    reason = space.until(lambda status: "never" in status["reason"], "greedy")["reason"]
    assert reason.startswith(f"queue {queue} can never admit it:")
    assert "insufficient quota for cpu" in reason
    assert space.status("greedy")["phase"] == "pending"
    assert listed(space) == {"first": "running", "second": "pending", "greedy": "pending"}
    for name in ("greedy", "first"):
        done = space.allranks("cancel", name)
        assert done.returncode == 0, done.stderr
    space.until(lambda status: status["phase"] == "running", "second")
    assert listed(space)["second"] == "running"


def listed(space: Space) -> dict[str, str]:
    """What ``list`` says of each run here."""
    runs = json.loads(space.allranks("list", "-o", "json").stdout)
    return {run["name"]: run["phase"] for run in runs if run["name"] in ("first", "second", "greedy")}
