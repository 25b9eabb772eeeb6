"""Whoever starts the ranks, they learn the same of themselves, and their true end is told."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from allranks.node.environment import IDENTITY
from tests.gangs.gang import RunningGang

pytestmark = [pytest.mark.gang, pytest.mark.torch]
FOREIGN = ["torchrun", "deepspeed"]
PER_ATTEMPT = {"MASTER_PORT"}

REPORT = f"import json, os\nprint(json.dumps({{name: os.environ.get(name) for name in {IDENTITY!r}}}))\n"


def environments(folder: Path, launcher: str, ranks: int = 2) -> list[dict[str, str]]:
    """What each rank of 2 nodes finds in its environment, by rank."""
    folder.mkdir()
    options = ("--launcher", launcher, "--restarts", "0")
    with RunningGang(folder, script=REPORT, ranks=ranks, options=options, detach=False) as g:
        assert g.process
        out, _ = g.process.communicate(timeout=120)
        assert g.process.returncode == 0, out + g.agent_logs()
        logs = [g.run_directory / f"logs/attempt-0/rank-{rank}.log" for rank in range(2 * ranks)]
        return [json.loads(log.read_text().splitlines()[-1]) for log in logs]


def test_the_rank_environment_is_the_same_under_all_launchers(tmp_path: Path) -> None:
    native = environments(tmp_path / "native", "native")
    assert [env["RANK"] for env in native] == ["0", "1", "2", "3"]
    for launcher in FOREIGN:
        other = environments(tmp_path / launcher, launcher)
        for one, two in zip(native, other, strict=True):
            assert {n: v for n, v in one.items() if n not in PER_ATTEMPT} == {
                n: v for n, v in two.items() if n not in PER_ATTEMPT
            }, launcher


def test_once_starts_one_process_a_node(tmp_path: Path) -> None:
    found = environments(tmp_path / "once", "once", ranks=1)
    assert [(env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"]) for env in found] == [("0", "2", "0"), ("1", "2", "0")]


@pytest.mark.parametrize("launcher", FOREIGN)
def test_a_killed_rank_of_a_foreign_launcher_is_named_and_the_gang_comes_back(tmp_path: Path, launcher: str) -> None:
    """The launcher itself would only say that it failed."""
    options = ("--launcher", launcher, "--restarts", "1")
    with RunningGang(tmp_path, options=options) as g:
        g.stepping(0, seconds=60)
        g.kill(g.pid_of(3))
        g.stepping(1, seconds=60)
        (cause,) = g.status()["causes"]
        assert (cause["rank"], cause["node"], cause["signal"]) == (3, 1, "SIGKILL")


def test_a_foreign_launcher_that_cannot_start_ranks_is_told(tmp_path: Path) -> None:
    options = ("--launcher", "torchrun", "--restarts", "0")
    with RunningGang(tmp_path, sys.executable, "steps.py", script="raise SystemExit(9)\n", nodes=1, options=options,
                     detach=False) as g:  # fmt: skip
        assert g.process
        out, _ = g.process.communicate(timeout=60)
        assert g.process.returncode == 9, out
