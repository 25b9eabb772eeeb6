"""A preflight names the bad node before user code starts: real agents in network namespaces on a bridge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from allranks import __version__
from allranks.engines.local.control import SUPERVISOR
from tests.gangs.gang import cli
from tests.network import command, hosts, needs_network, slow_down

pytestmark = pytest.mark.gang
PORT = 29411


@contextmanager
def gang(folder: Path, names: list[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """An init in each namespace, told who it is as a PyTorchJob's pods are; ranks leave a file when they start."""
    inits = []
    try:
        for node, name in enumerate(names):
            state = folder / f"node-{node}"
            (state / "logs").mkdir(parents=True)
            (state / "secret").write_text("ab" * 32)
            plan = {
                "run": "pre", "engine": "pytorchjob", "version": __version__, "nodes": len(names), "ranks_per_node": 1,
                "launcher": "native", "argv": ["touch", str(folder / "started")], "workdir": str(folder),
                "coordinator": "10.77.0.1", "port": PORT, "state": str(state), "start_timeout": 90.0, "grace": 1.0,
                "cache": str(folder / "cache"), "preflight": True,
            }  # fmt: skip
            (state / "plan.json").write_text(json.dumps(plan))
            place = {"PET_NNODES": str(len(names)), "PET_NODE_RANK": str(node), "MASTER_ADDR": "10.77.0.1"}
            words = ["ip", "netns", "exec", name, sys.executable, str(SUPERVISOR), "init", str(state / "plan.json")]
            with (state / "logs/init.log").open("wb") as out:
                environment = {**os.environ, **place, "RANK": str(node)}
                inits.append(subprocess.Popen(words, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment))
        yield inits
    finally:
        for init in inits:
            init.kill()
            init.wait()


def outcome(folder: Path, names: list[str]) -> dict[str, Any]:
    """The record, once all inits have ended."""
    with gang(folder, names) as inits:
        for init in inits:
            init.wait(120)
    found: dict[str, Any] = json.loads((folder / "node-0/status.json").read_text())
    return found


@needs_network
def test_a_slow_node_is_named_before_user_code_starts(tmp_path: Path) -> None:
    with hosts(3) as names:
        slow_down(names[2])
        record = outcome(tmp_path, names)
    assert (record["phase"], record["exit_code"]) == ("failed", 69)
    (cause,) = record["causes"]
    assert (cause["kind"], cause["node"]) == ("preflight", 2)
    assert "it is slow" in cause["message"]
    assert not (tmp_path / "started").exists()


@needs_network
def test_of_two_nodes_the_one_that_sends_slowly_is_named(tmp_path: Path) -> None:
    with hosts(2) as names:
        slow_down(names[1])
        record = outcome(tmp_path, names)
    assert [(cause["kind"], cause["node"]) for cause in record["causes"]] == [("preflight", 1)]
    assert "sends at" in record["reason"]


@needs_network
def test_a_gang_on_a_sound_network_starts(tmp_path: Path) -> None:
    with hosts(3) as names:
        record = outcome(tmp_path, names)
    assert record["phase"] == "succeeded", record
    assert [one for one in record["findings"] if one["level"] == "error"] == []
    assert (tmp_path / "started").exists()


@needs_network
def test_nodes_that_do_not_reach_each_other_are_told(tmp_path: Path) -> None:
    with hosts(3) as names:
        command("ip", "-n", names[1], "route", "add", "unreachable", "10.77.0.3/32")
        record = outcome(tmp_path, names)
    assert (record["causes"][0]["kind"], record["causes"][0]["node"]) == ("preflight", 1)
    assert "the way between them is slow: nothing got through" in record["reason"]
    assert record["findings"][0]["nodes"] == [1, 2]


def test_without_a_preflight_nothing_is_checked(tmp_path: Path) -> None:
    done = cli("run", "--name", "p", "--nodes", "2", "--", "true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(cli("status", "p", "-o", "json").stdout)["findings"] == []


def test_doctor_checks_a_gang_and_says_that_all_is_well(tmp_path: Path) -> None:
    done = cli("doctor", "--nodes", "2", "-o", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["healthy"]


def test_doctor_says_what_a_run_would_have_failed_with(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("kind: Job\nname: d\nnodes: 2\nrun: 'true'\nnetwork: {rdma: required}\n")
    done = cli("doctor", "--spec", "job.yaml", "-o", "json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert (done.returncode, found["healthy"]) == (1, False), done.stderr
    assert any("no RDMA device can be used here" in one["what"] for one in found["findings"])
