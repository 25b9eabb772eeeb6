"""Gangs on the real operators: run, told of, broken in each way, and ended."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.engines.conftest import ENGINES, Space
from tests.cluster.engines.kubectl import kubectl

STEPS = """
import time
for step in range(100000):
    print(f"step {step} at {time.time():.3f}", flush=True)
    time.sleep(0.1)
"""
ENDS = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
FAILS = "import os, sys, time; time.sleep(1); sys.exit(7 if os.environ['RANK'] == '3' else 0)"


def python(text: str) -> list[str]:
    return ["python3", "-uc", text]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_gang_runs_to_its_end_and_its_lines_are_told_apart(space: Space, engine: str) -> None:
    done = space.allranks("run", "--engine", engine, str(space.spec(run=python(ENDS))))
    assert done.returncode == 0, done.stderr
    lines = [f"rank {rank} | rank {rank} of 4" for rank in range(4)]
    assert sorted(done.stdout.splitlines()) == lines
    node = ["--node", "0"] if engine == "mpijob" else []  # its workers may be deleted before they are seen to end
    again = space.allranks("logs", "gang", *node)
    assert sorted(again.stdout.splitlines()) == (lines[:2] if node else lines), again.stderr
    status = space.status()
    assert (status["phase"], status["exit_code"], status["engine"]) == ("succeeded", 0, engine)
    listed = space.allranks("list").stdout
    assert re.search(rf"gang +{engine} +succeeded", listed)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_fails_is_named_and_its_code_is_runs(space: Space, engine: str) -> None:
    spec = space.spec(run=python(FAILS), failure={"restarts": 1, "grace": "1s"})
    done = space.allranks("run", "--engine", engine, str(spec))
    assert done.returncode == 7, done.stderr
    status = space.until(lambda status: bool(status["conditions"]))
    assert [(cause["attempt"], cause["rank"], cause["exit"]) for cause in status["causes"]] == [(0, 3, 7), (1, 3, 7)]
    space.until(lambda status: any("Failed" in line for line in status["conditions"]), seconds=60)


def test_an_operator_that_deletes_running_pods_at_the_end_of_any_finds_none_when_the_gang_fails(space: Space) -> None:
    spec = space.spec(run=python(f"print('here'); {FAILS}"), failure={"restarts": 0, "grace": "1s"})
    assert space.allranks("run", "--engine", "pytorchjob", str(spec)).returncode == 7
    lines = space.allranks("logs", "gang")
    assert sorted(lines.stdout.splitlines()) == [f"rank {rank} | here" for rank in range(4)], lines.stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_rank_costs_no_pod(space: Space, engine: str) -> None:
    space.start(engine, space.spec(run=python(STEPS)))
    status = space.until(lambda status: status["phase"] == "running")
    before = pods(space)
    pid = status["nodes"][1]["ranks"][0]["pid"]
    killed = kill(space, status["nodes"][1]["name"], pid)
    status = space.until(lambda status: status["attempt"] == 1 and status["phase"] == "running")
    (cause,) = status["causes"]
    assert (cause["rank"], cause["node"], cause["signal"]) == (2, 1, "SIGKILL")
    assert pods(space) == before
    back = max(first_steps(space, 1)) - killed
    print(f"{engine}: rank killed, all stepping again after {back:.2f} s")
    assert back < 20  # measured: 0.3 to 1 s on a machine with nothing else to do
    assert cancelled(space)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_agent_costs_no_container(space: Space, engine: str) -> None:
    space.start(engine, space.spec(run=python(STEPS)))
    status = space.until(lambda status: status["phase"] == "running")
    before = pods(space)
    name = status["nodes"][1]["name"]
    killed = kill(space, name, int(agent_of(space, name)))
    status = space.until(lambda status: status["attempt"] == 1 and status["phase"] == "running")
    (cause,) = status["causes"]
    assert (cause["kind"], cause["node"]) == ("node_lost", 1)
    assert pods(space) == before
    print(f"{engine}: agent killed, all stepping again after {max(first_steps(space, 1)) - killed:.2f} s")
    assert cancelled(space)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_deleted_pod_is_rejoined_and_followed_all_the_while(space: Space, engine: str) -> None:
    space.start(engine, space.spec(run=python(STEPS)))
    status = space.until(lambda status: status["phase"] == "running")
    deleted = time.time()
    kubectl("-n", space.name, "delete", "pod", status["nodes"][1]["name"], "--wait=false")
    status = space.until(lambda status: status["attempt"] > 0 and status["phase"] == "running")
    assert [cause["kind"] for cause in status["causes"]] == ["node_lost"]
    assert status["restarts"]["used"] == 1
    steps = first_steps(space, status["attempt"])
    print(f"{engine}: pod deleted, all stepping again after {max(steps) - deleted:.2f} s")
    assert cancelled(space)


@pytest.mark.parametrize("node", [1, 0])
@pytest.mark.parametrize("engine", ["jobset", "trainjob"])
def test_a_gang_that_may_ask_remembers_over_the_loss_of_all_its_pods(space: Space, engine: str, node: int) -> None:
    failure = {"grace": "2s", "restarts": 3, "start_timeout": "90s", "force_delete": True}
    space.start(engine, space.spec(run=python(STEPS), failure=failure))
    status = space.until(lambda status: status["phase"] == "running")
    kill(space, status["nodes"][1]["name"], status["nodes"][1]["ranks"][0]["pid"])
    status = space.until(lambda status: status["attempt"] == 1 and status["phase"] == "running")
    kubectl("-n", space.name, "delete", "pod", status["nodes"][node]["name"], "--wait=false")
    space.until(lambda status: status["attempt"] >= 1000 and status["phase"] == "running")
    forget(space)
    status = space.status()
    assert status["restarts"]["used"] == 2
    assert [(cause["attempt"], cause["kind"], cause["node"]) for cause in status["causes"]] == [
        (0, "signal", 1), (1, "node_lost", node),
    ]  # fmt: skip
    assert "was deleted or evicted (SIGTERM)" in status["causes"][1]["message"]
    assert cancelled(space)


def test_causes_outlive_all_pods_in_the_ledger(space: Space) -> None:
    failure = {"grace": "1s", "restarts": 1, "force_delete": True}
    space.start("jobset", space.spec(run=python(FAILS), failure=failure))
    space.until(lambda status: any("Failed" in line for line in status["conditions"]))
    kubectl("-n", space.name, "delete", "pods", "--all")
    forget(space)
    status = space.status()
    assert [(cause["attempt"], cause["rank"], cause["exit"]) for cause in status["causes"]] == [(0, 3, 7), (1, 3, 7)]
    assert (status["phase"], status["restarts"]) == ("failed", {"used": 1, "allowed": 1})


@pytest.mark.parametrize("engine", ["jobset", "trainjob"])
def test_a_gang_that_may_not_ask_says_that_it_has_forgotten(space: Space, engine: str) -> None:
    space.start(engine, space.spec(run=python(STEPS)))
    status = space.until(lambda status: status["phase"] == "running")
    kubectl("-n", space.name, "delete", "pod", status["nodes"][1]["name"], "--wait=false")
    space.until(lambda status: status["attempt"] >= 1000 and status["phase"] == "running")
    forget(space)  # it may have seen what the lost coordinator knew
    status = space.status()
    (cause,) = status["causes"]
    assert (cause["kind"], cause["node"], status["restarts"]["used"]) == ("node_lost", None, 1)
    assert "all pods anew for the 1st time: one was lost; which one is not known" in cause["message"]
    assert cancelled(space)


@pytest.mark.parametrize("engine", ENGINES)
def test_cancel_ends_a_gang_that_cannot_start(space: Space, engine: str) -> None:
    space.start(engine, space.spec(resources={"memory": "900Ti"}))
    space.until(lambda status: "Insufficient memory" in status["reason"])
    assert cancelled(space)
    assert space.status()["phase"] == "cancelled"


def forget(space: Space) -> None:
    """What this client has seen of the run but where it is: only what the gang itself remembers counts."""
    (path,) = Path(os.environ["XDG_STATE_HOME"], "allranks", "clusters").glob(f"*/{space.name}/gang.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "uid": "another run's"}))


def kill(space: Space, pod: str, pid: int) -> float:
    """Returns when, by the clock that all share here: what kubectl takes does not count."""
    return float(kubectl("-n", space.name, "exec", pod, "--", "sh", "-c", f"date +%s.%N; kill -9 {pid}"))


def agent_of(space: Space, pod: str) -> str:
    look = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline | grep -q 'pyz [a]gent ' && basename $p; done; true"
    return kubectl("-n", space.name, "exec", pod, "--", "sh", "-c", look).split()[0]


def pods(space: Space) -> list[str]:
    """Each pod with how often its container was started."""
    shown = "jsonpath={range .items[*]}{.metadata.uid} {.status.containerStatuses[*].restartCount}{'\\n'}{end}"
    return sorted(kubectl("-n", space.name, "get", "pods", "-o", shown).splitlines())


def first_steps(space: Space, attempt: int) -> list[float]:
    """When each rank made its first step in that attempt."""
    until = time.monotonic() + 30
    while len(found := dict(_steps(space, attempt))) < 4:
        assert time.monotonic() < until, found
    return list(found.values())


def _steps(space: Space, attempt: int) -> Iterator[tuple[int, float]]:
    text = space.allranks("logs", "gang", "--attempt", str(attempt)).stdout
    for rank, at in re.findall(r"rank (\d+) \| step 0 at ([\d.]+)", text):
        yield int(rank), float(at)


def cancelled(space: Space) -> Any:
    """Twice: the second time there is nothing to do. Whether nothing runs any more."""
    for _ in range(2):
        done = space.allranks("cancel", "gang")
        assert done.returncode == 0, done.stderr
    shown = "jsonpath={range .items[*]}{.status.containerStatuses[*].state.running.startedAt}{end}"
    return not kubectl("-n", space.name, "get", "pods", "-o", shown)
