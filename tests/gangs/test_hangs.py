"""Real gangs that hang in every way we know: the right rank is named, and all stacks are kept, before the end."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.gangs.gang import RunningGang, cli, eventually

pytestmark = [pytest.mark.gang, pytest.mark.torch]

HANG_TIMEOUT = 3.0
WAYS = ("stop", "spin", "gil", "regex", "skip", "mismatch", "none")

TRAIN = (Path(__file__).parents[2] / "bench" / "programs" / "hang.py").read_text()
SKIPS = f"train.py:{1 + TRAIN[: TRAIN.index('threading.Event')].count(chr(10))} misbehave"

PAUSES = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(3):
    time.sleep(0.1 * rank)  # uneven
    dist.all_reduce(torch.ones(100))
    if rank == 0:
        time.sleep(2)  # writes a checkpoint
    dist.barrier()
time.sleep(5)  # all of them compile
dist.all_reduce(torch.ones(100))
"""

STRAGGLES = """
import time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(100))
if dist.get_rank() == 2:
    time.sleep(6)
dist.all_reduce(torch.ones(100))
time.sleep(2)
"""

EXPECTED = {
    "stop": "rank 1 on node 0 is stopped (state T",
    "spin": "rank 1 on node 0 had not entered all_reduce #11 that 3 ranks wait in; it was in train.py:",
    "gil": "rank 1 on node 0 has not answered for ",
    "regex": "rank 1 on node 0 has not answered for ",
    "skip": f"rank 1 on node 0 had not entered all_reduce #11 that 3 ranks wait in; it was in {SKIPS}",
    "mismatch": "rank 1 on node 0 is in all_gather as collective #11, in which 3 ranks are in all_reduce of [100]",
}


def gang(
    folder: Path, script: str, *arguments: str, timeout: str = "3s", restarts: int = 0, **more: Any
) -> RunningGang:
    """A gang of 2 x 2 that runs the script with this ``hang_timeout``."""
    (folder / "train.py").write_text(script)
    spec = f"kind: Job\nname: g\nrun: x\nfailure: {{restarts: {restarts}, hang_timeout: {timeout}, grace: 2s}}\n"
    (folder / "job.yaml").write_text(spec)
    return RunningGang(folder, sys.executable, "train.py", *arguments, options=("job.yaml",), **more)


def evidence_of(g: RunningGang, attempt: int) -> Path:
    return g.run_directory / "evidence" / f"attempt-{attempt}"


def check_evidence(folder: Path, way: str) -> None:
    """Stacks and account of every rank, and the table."""
    for rank in range(4):
        stack = (folder / f"rank-{rank}.stack.txt").read_text()
        assert "train.py" in stack, f"{way}: rank {rank}: {stack}"
        assert "node/watch/inside.py" not in stack
        account = json.loads((folder / f"rank-{rank}.json").read_text())
        assert (account["rank"], account["node"]) == (rank, rank // 2)
        assert "all_reduce" in stack or rank == 1, stack
    assert "misbehave" in (folder / "rank-1.stack.txt").read_text()
    table = (folder / "table.txt").read_text().splitlines()
    assert table[0].startswith(EXPECTED[way])
    assert [line.split()[0] for line in table[2:]] == ["rank", "0", "1", "2", "3"]


def test_a_straggler_is_named_while_the_others_wait_and_nothing_is_done_to_it(tmp_path: Path) -> None:
    with gang(tmp_path, STRAGGLES, timeout="9s") as g:
        straggler = eventually("a straggler is named", lambda: g.record().get("straggler"), 60)
        assert straggler["message"].startswith("rank 2 on node 1 had not entered all_reduce #2 that 3 ranks wait in"), (
            straggler
        )
        assert "it was in train.py:7" in straggler["message"]
        assert "waiting for" in cli("status", "g").stdout
        eventually("it has moved on", lambda: not g.record()["straggler"], 30)
        record = g.until("succeeded", seconds=30)
        assert not (g.run_directory / "evidence").exists()
    assert record["causes"] == []
    samples = (g.run_directory / "history" / "node-1.jsonl").read_text().splitlines()
    assert all(rss > 10**7 for line in samples for _, rss, _ in json.loads(line)[2])
    assert max(completed for line in samples for _, _, completed in json.loads(line)[2]) == 2


def test_every_kind_of_hang_is_named_with_evidence_and_the_gang_starts_again(tmp_path: Path) -> None:
    began = tmp_path / "began"
    arguments = (str(began), ",".join(WAYS))
    with gang(tmp_path, TRAIN, *arguments, restarts=len(WAYS) - 1, detach=False) as g:
        assert g.process
        out, _ = g.process.communicate(timeout=120)
        assert g.process.returncode == 0, out + g.agent_logs()
        record = g.record()
    began_at = [float(line) for line in began.read_text().splitlines()]
    assert len(record["causes"]) == len(EXPECTED), record
    for cause, (way, words), begin in zip(record["causes"], EXPECTED.items(), began_at, strict=True):
        assert (cause["kind"], cause["rank"], cause["node"], cause["exit"]) == ("hang", 1, 0, 1), cause
        assert cause["message"].startswith(words), cause["message"]
        assert "misbehave" in cause["message"]
        took = datetime.fromisoformat(cause["at"].replace("Z", "+00:00")).timestamp() - begin
        assert HANG_TIMEOUT - 0.5 < took < HANG_TIMEOUT + 5, f"{way}: {took:.1f} s"
        check_evidence(evidence_of(g, cause["attempt"]), way)


def test_without_budget_the_run_ends_with_1_and_leaves_nothing(tmp_path: Path) -> None:
    with gang(tmp_path, TRAIN, str(tmp_path / "began"), "stop", detach=False) as g:
        assert g.process
        out, _ = g.process.communicate(timeout=60)
        assert g.process.returncode == 1, out
        assert EXPECTED["stop"] in out
        assert g.record()["phase"] == "failed"
    check_evidence(evidence_of(g, 0), "stop")


def test_a_checkpoint_shorter_than_hang_timeout_and_long_steps_of_all_are_no_hang(tmp_path: Path) -> None:
    with gang(tmp_path, PAUSES, timeout="4s", detach=False) as g:
        assert g.process
        out, _ = g.process.communicate(timeout=60)
        assert g.process.returncode == 0, out
        assert g.record()["causes"] == []


def test_with_the_detector_switched_off_a_hang_lasts(tmp_path: Path) -> None:
    """What the other tests see is the detector's work and no one else's."""
    began = tmp_path / "began"
    with gang(tmp_path, TRAIN, str(began), "skip", timeout="1h") as g:
        eventually("rank 1 hangs", began.exists, 30)
        time.sleep(HANG_TIMEOUT + 5)
        assert g.status()["phase"] == "running"
        assert not evidence_of(g, 0).exists()
        cli("cancel", g.name)


# ------------------------------------------------------------------------- ranks that were not forked by us


@pytest.mark.parametrize(
    ("launcher", "command"),
    [
        ("native", ("/bin/sh", "-c", 'exec "$0" "$@"', sys.executable)),
        ("native", ("/bin/sh", "-c", '"$0" "$@"; exit $?', sys.executable)),
        ("torchrun", (sys.executable,)),
    ],
    ids=["exec'd", "under a shell", "torchrun"],
)
def test_a_rank_that_was_not_forked_is_watched_as_well(tmp_path: Path, launcher: str, command: tuple[str, ...]) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.hidden = 'mine'\n")
    script = TRAIN
    script = "import sys\nassert hidden == 'mine'\nassert not [n for n in sys.modules if 'allranks' in n]\n" + script
    (tmp_path / "train.py").write_text(script)
    spec = "kind: Job\nname: g\nrun: x\nfailure: {hang_timeout: 3s, grace: 2s, restarts: 0}\n"
    (tmp_path / "job.yaml").write_text(spec)
    options = ("job.yaml", "--launcher", launcher, "-e", f"PYTHONPATH={tmp_path}")
    argv = (*command, "train.py", str(tmp_path / "began"), "gil")
    with RunningGang(tmp_path, *argv, options=options, detach=False) as g:
        assert g.process
        out, _ = g.process.communicate(timeout=90)
        assert g.process.returncode == 1, out
        (cause,) = g.record()["causes"]
        assert cause["message"].startswith(EXPECTED["gil"]), cause["message"]
        assert "3 ranks wait in all_reduce #11" in cause["message"]
        check_evidence(evidence_of(g, 0), "gil")


def test_a_stopped_program_that_is_not_python_is_named_by_the_kernels_state(tmp_path: Path) -> None:
    spec = "kind: Job\nname: g\nrun: x\nfailure: {hang_timeout: 2s, grace: 1s, restarts: 0}\n"
    (tmp_path / "job.yaml").write_text(spec)
    argv = ("/bin/sh", "-c", "[ $RANK = 2 ] && kill -STOP $$; sleep 60")
    with RunningGang(tmp_path, *argv, options=("job.yaml",), detach=False) as g:
        assert g.process
        out, _ = g.process.communicate(timeout=60)
        assert g.process.returncode == 1, out
        (cause,) = g.record()["causes"]
        assert (cause["kind"], cause["rank"], cause["node"]) == ("hang", 2, 1)
        assert cause["message"].startswith("rank 2 on node 1 is stopped (state T")
        assert "no thread of ours answers in it" in (evidence_of(g, 0) / "rank-2.stack.txt").read_text()


def test_a_rank_that_an_exception_ends_and_that_hangs_at_its_exit_is_told_by_the_exception(tmp_path: Path) -> None:
    """As destructors of communicators do that wait for ranks which wait for this one."""
    script = """
import sys, time, torch, torch.distributed as dist
class Stays:
    def __init__(self, sleep=time.sleep): self.sleep = sleep
    def __del__(self): self.sleep(600)
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(100))
if dist.get_rank() == 1:
    sys.stays = Stays()
    raise ValueError("seven")
dist.all_reduce(torch.ones(100))
"""
    with gang(tmp_path, script, detach=False) as g:
        assert g.process
        out, _ = g.process.communicate(timeout=60)
        assert g.process.returncode == 1, out
        (cause,) = g.record()["causes"]
        assert (cause["kind"], cause["rank"], cause["node"]) == ("exception", 1, 0), cause
        words = "rank 1 on node 0: ValueError: seven; its process has not ended since; 3 ranks wait in all_reduce #2"
        assert cause["message"].startswith(words), cause["message"]
