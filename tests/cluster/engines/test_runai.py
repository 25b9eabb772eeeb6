"""Run:ai's part is a stand-in that makes, of the program's arguments, the PyTorchJob; the operator is the real one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.cluster.engines.conftest import Space
from tests.cluster.engines.kubectl import kubectl
from tests.cluster.engines.test_environment import environments, expected, same
from tests.cluster.engines.test_gangs import ENDS, STEPS, kill, pods, python
from tests.engines.runai import stand_in


@pytest.fixture(params=["1", "2"])
def record(space: Space, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-in for runai of that version writes what it was told."""
    found = stand_in.install(space.folder, sys.executable)
    told = {
        "PATH": f"{space.folder}:{os.environ['PATH']}", "RUNAI_VERSION": request.param, "RUNAI_RECORD": str(found),
        "RUNAI_NAMESPACE": space.name, "KUBECTL": str(space.cluster.binary),
    }  # fmt: skip
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    return found


def test_a_gang_runs_to_its_end_by_way_of_the_program(space: Space, record: Path) -> None:
    spec = space.spec(run=python(ENDS), engines={"runai": {"project": "team"}})
    done = space.allranks("run", "--engine", "runai", str(spec))
    assert done.returncode == 0, done.stderr
    lines = [f"rank {rank} | rank {rank} of 4" for rank in range(4)]
    assert sorted(done.stdout.splitlines()) == lines
    (submitted,) = [argv for argv in told(record) if "--workers" in argv]
    plan = json.loads(space.allranks("plan", "--engine", "runai", "-o", "json", str(spec)).stdout)
    assert ["runai", *submitted] == plan["documents"][-1]["argv"]
    status = space.status()
    assert (status["engine"], status["phase"], status["world_size"]) == ("runai", "succeeded", 4)
    assert "gang" in space.allranks("list").stdout
    (kept,) = Path(os.environ["XDG_STATE_HOME"], "allranks", "runai").rglob("gang.log")
    text = kept.read_text()
    assert "submitted successfully" in text
    assert all(f"0 {line}" in text for line in lines)
    owners = kubectl("-n", space.name, "get", "secret", "gang-allranks", "-o", "jsonpath={.metadata.ownerReferences}")
    assert json.loads(owners)[0]["kind"] == "PyTorchJob"
    assert space.allranks("run", "--engine", "runai", str(spec)).returncode == 0  # the name is free again


def test_ranks_are_told_the_same_as_on_every_engine(space: Space, record: Path, foreign: str) -> None:
    ranks = environments(space, "runai", image=foreign)
    assert [same(env) for env in ranks] == [expected(rank) for rank in range(4)]


def test_a_gang_is_seen_broken_and_ended_as_on_any_engine(space: Space, record: Path) -> None:
    space.start("runai", space.spec(run=python(STEPS)))
    status = space.until(lambda status: status["phase"] == "running")
    before = pods(space)
    kill(space, status["nodes"][1]["name"], status["nodes"][1]["ranks"][0]["pid"])
    status = space.until(lambda status: status["attempt"] == 1 and status["phase"] == "running")
    assert [(cause["rank"], cause["signal"]) for cause in status["causes"]] == [(2, "SIGKILL")]
    assert pods(space) == before
    shell = space.allranks("shell", "gang", "--node", "1", stdin="echo node $NODE_RANK\n")
    assert shell.stdout == "node 1\n", shell.stderr
    for _ in range(2):
        assert space.allranks("cancel", "gang").returncode == 0
    assert space.status()["phase"] == "cancelled"


def test_cancel_has_runai_delete_what_cannot_be_asked(space: Space, record: Path) -> None:
    space.start("runai", space.spec(image="no.invalid/no:1"))
    space.until(lambda status: "cannot be pulled" in status["reason"])
    assert space.allranks("cancel", "gang").returncode == 0
    assert any("delete" in argv for argv in told(record))
    assert not kubectl("-n", space.name, "get", "pytorchjobs,secret,configmap", "-l", "allranks.dev/run", "-o", "name")


def told(record: Path) -> list[list[str]]:
    """What the program was told, but for help."""
    found = [json.loads(line) for line in record.read_text().splitlines()]
    return [argv for argv in found if "--help" not in argv]
