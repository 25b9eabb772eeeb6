"""The init of an engine with containers: one node, told by its environment which, and its exit code is the agent's."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from allranks.engines.local.control import SUPERVISOR
from tests.node.gangs import make_gang

PLACE = {"PET_NNODES": "1", "PET_NODE_RANK": "0", "RANK": "0", "MASTER_ADDR": "127.0.0.1"}


def run_init(folder: Path, place: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    """One node with two ranks, as a PyTorchJob's pod would start it."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    gang = make_gang(
        engine="pytorchjob", nodes=1, argv=argv, state=str(folder), cache=str(folder), workdir=str(folder), port=port
    )
    (folder / "logs").mkdir()
    if not (folder / "secret").exists():
        (folder / "secret").write_text("ab" * 32)
    (folder / "plan.json").write_text(json.dumps(vars(gang)))
    return subprocess.run(
        [sys.executable, SUPERVISOR, "init", folder / "plan.json"],
        env={**os.environ, **place}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.gang
@pytest.mark.parametrize(("command", "code", "phase"), [("exit 0", 0, "succeeded"), ("exit 7", 42, "failed")])
def test_it_exits_as_the_engine_should_take_the_end_of_the_run(
    tmp_path: Path, command: str, code: int, phase: str
) -> None:
    done = run_init(tmp_path, PLACE, "sh", "-c", command)
    assert done.returncode == code, done.stderr
    assert json.loads((tmp_path / "status.json").read_text())["phase"] == phase


@pytest.mark.gang
def test_an_agent_that_breaks_is_not_told_as_a_cancelled_run(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    done = run_init(tmp_path, PLACE, "true")
    assert done.returncode == 1
    record = json.loads((tmp_path / "status.json").read_text())
    assert (record["phase"], record["exit_code"]) == ("failed", 70)
    assert "see logs/agent-" in record["reason"]


def test_an_environment_that_does_not_say_which_node_it_is_is_told(tmp_path: Path) -> None:
    done = run_init(tmp_path, {}, "true")
    assert done.returncode == 42
    assert "cannot tell which node this is: PET_NNODES is not set (read as engine pytorchjob)" in done.stdout
