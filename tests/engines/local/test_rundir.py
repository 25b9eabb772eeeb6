"""A run's directory tells the truth, whatever was killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from allranks.engines.local import rundir
from allranks.engines.local.control import ENGINE
from allranks.engines.local.rundir import RunDir
from allranks.errors import EngineError
from allranks.node.processes import start_time

HOLD = (
    "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
)


@contextmanager
def held(lock: Path) -> Iterator[int]:
    """Another process holds the lock; a lock of our own would not be told from none."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield holder.pid
        assert holder.stdin is not None
        holder.stdin.close()


def run_of(name: str = "digits", **status: Any) -> RunDir:
    run = RunDir(rundir.runs_home() / name)
    run.logs.mkdir(parents=True)
    run.plan.write_text("{}")
    if status:
        (run.path / "status.json").write_text(json.dumps({"name": "digits", "engine": "local", **status}))
    return run


NODES = [
    {
        "node": 0,
        "name": "digits-0",
        "phase": "running",
        "ranks": [{"rank": 0, "local_rank": 0, "pid": 7, "state": "running"}],
    }
]


def test_a_run_whose_lock_is_held_is_what_its_record_says() -> None:
    run = run_of(phase="running")
    with held(run.lock) as pid:
        assert run.holder() == rundir.Holder(pid, start_time(pid))
        assert run.status().phase == "running"
    assert run.holder() is None


def test_a_run_whose_supervisor_was_killed_has_failed_and_none_of_its_ranks_runs() -> None:
    run = run_of(phase="running", nodes=NODES)
    run.lock.write_text("4242 99\n")
    status = run.status()
    assert (status.phase, status.reason, status.exit_code) == ("failed", "its supervisor (pid 4242) is gone", 70)
    assert status.nodes[0].phase == "failed"
    assert (status.nodes[0].ranks[0].state, status.nodes[0].ranks[0].pid) == ("ended", None)


@pytest.mark.parametrize("phase", ["succeeded", "failed", "cancelled"])
def test_a_run_that_is_over_needs_no_supervisor(phase: str) -> None:
    status = run_of(phase=phase, exit_code=3, reason="so it went").status()
    assert (status.phase, status.exit_code, status.reason) == (phase, 3, "so it went")


def test_a_run_that_never_started_says_its_supervisors_last_words() -> None:
    run = run_of()
    (run.logs / "init.log").write_text("first\nno port is free\n")
    assert run.status().reason == "it could not be started: no port is free"


def test_a_run_that_is_just_being_submitted_is_pending() -> None:
    run = run_of()
    with held(rundir.submit_lock()):
        assert run.status().phase == "pending"


def test_a_broken_record_is_an_error_that_names_the_file() -> None:
    run = run_of(phase="running")
    (run.path / "status.json").write_text("{")
    with pytest.raises(EngineError, match=r"run digits: .*/digits/status.json cannot be read: "):
        run.status()
    run_of("other", phase="succeeded")
    assert {status.name: status.phase for status in ENGINE.list()} == {"digits": "failed", "other": "succeeded"}


def test_a_finished_run_moves_aside_with_its_logs_and_three_are_kept() -> None:
    old_log = str(rundir.runs_home() / "digits" / "logs" / "attempt-0" / "rank-1.log")
    cause = {"attempt": 0, "kind": "exit", "at": "", "message": "", "log": old_log}
    for exit_code in range(6):
        run = run_of(phase="failed", exit_code=exit_code, causes=[cause])
        rundir.move_aside(run)
    older = {run.name: run.status() for run in rundir.all_runs()}
    assert {name: status.exit_code for name, status in older.items()} == {"digits.1": 5, "digits.2": 4, "digits.3": 3}
    assert older["digits.2"].name == "digits.2"
    assert older["digits.2"].causes[0].log == old_log.replace("/digits/", "/digits.2/")


def test_a_lock_that_another_holds_too_long_is_an_error_that_names_it(tmp_path: Path) -> None:
    with (
        held(tmp_path / "lock") as pid,
        pytest.raises(EngineError, match=rf"another allranks \(pid {pid}\) holds .*/lock for over 0 s"),
        rundir.exclusive(tmp_path / "lock", timeout=0.1),
    ):
        pass


def test_a_relative_xdg_directory_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("HOME", "/home/me")
    assert rundir.runs_home() == Path("/home/me/.local/state/allranks/runs")
