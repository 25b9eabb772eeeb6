"""What real ranks print: bounded on disk, shown live, found by time, whatever they do to their streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.gangs.gang import RunningGang, cli, eventually

pytestmark = pytest.mark.gang

SPEAKERS = """
import os, sys, time
rank = os.environ["RANK"]
if rank == "0":  # eight times its limit
    for n in range(80_000):
        print(f"{n:07} {'x' * 91}", flush=n % 100 == 0)
elif rank == "1":
    print("before", flush=True)
    os.close(1), os.close(2)
elif rank == "2":
    os.write(1, b"\\xff\\x00\\x1b[2Jjunk\\n")
    for n in range(3000):
        os.write(2, b"\\r%d%%" % n)
else:
    print("early", flush=True)
    time.sleep(4)
    print("late", flush=True)
open(f"done-{rank}", "w").close()
time.sleep(600)
"""


def test_logs_of_a_gang_that_does_all_it_should_not(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("kind: Job\nname: g\nrun: 'true'\nlogs: {limit: 1Mi}\n")
    (tmp_path / "speakers.py").write_text(SPEAKERS)
    with RunningGang(tmp_path, sys.executable, "speakers.py", options=("job.yaml",)) as gang:
        for rank in range(4):
            eventually(f"rank {rank} has said all", (tmp_path / f"done-{rank}").exists, 30)
        late = time.time()
        log = gang.run_directory / "logs" / "attempt-0" / "rank-0.log"
        eventually("the log is cut", lambda: log.stat().st_blocks * 512 < 1.1 * 2**20)
        note, *lines = cli("logs", "g", "--rank", "0").stdout.splitlines()
        assert "bytes of this log were cut away: it had grown beyond 1,048,576 bytes (logs.limit)" in note
        assert [int(line.split()[3]) for line in lines] == list(range(80_000 - len(lines), 80_000))
        assert cli("logs", "g", "--node", "0", "--rank", "1").stdout == "rank 1 | before\n"
        assert cli("logs", "g", "--rank", "2").stdout == "rank 2 | \ufffdjunk\nrank 2 | 2999%\n"
        since = f"{time.time() - late + 1.5:.0f}s"
        assert cli("logs", "g", "--rank", "3", "--since", since).stdout == "rank 3 | late\n"


TALKER = """
import os, time
while os.environ["RANK"] == "1":
    print("x" * 1000, flush=True)
time.sleep(600)
"""
ON_A_SMALL_DISK = """
mount -t tmpfs -o size=2m tmpfs "$XDG_STATE_HOME" || exit 99
{run} >&2
allranks status g -o json
"""


def test_a_full_disk_ends_the_rank_that_prints_and_the_cause_says_so(tmp_path: Path) -> None:
    (tmp_path / "talker.py").write_text(TALKER)
    state = Path(os.environ["XDG_STATE_HOME"])
    state.mkdir()
    run = f"allranks run --name g --nodes 2 --restarts 1 -- {sys.executable} talker.py"
    script = ON_A_SMALL_DISK.format(run=run)
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if done.returncode == 99 or "unshare failed" in done.stderr:
        pytest.skip(f"no small disk can be made here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)
    assert [(cause["attempt"], cause["rank"]) for cause in status["causes"]] == [(0, 1), (1, 1)]
    assert (
        f"(the disk of its log is full: {state}/allranks/runs/g/logs/attempt-0/rank-1.log)"
        in (status["causes"][0]["message"])
    )
    assert (status["phase"], status["restarts"]) == ("failed", {"used": 1, "allowed": 1})
    unwritable = "the record of the run could not be written to "
    assert len([note for note in status["notes"] if note.startswith(unwritable)]) == 1


def test_a_command_that_fills_the_disk_ends_for_whoever_follows_it_and_so_does_the_next(tmp_path: Path) -> None:
    (tmp_path / "talker.py").write_text(TALKER)
    Path(os.environ["XDG_STATE_HOME"]).mkdir()
    run = (
        f"allranks up --name g --nodes 2 -- {sys.executable} talker.py && "
        f"for n in 1 2; do timeout -k 1 60 allranks exec g -- {sys.executable} talker.py || echo code $?; done"
    )
    script = ON_A_SMALL_DISK.format(run=f"{{ {run}; }}") + "allranks cancel g"
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
        cwd=tmp_path, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    if done.returncode == 99 or "unshare failed" in done.stderr:
        pytest.skip(f"no small disk can be made here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("code 1\n") == 2, done.stderr
    status = json.loads(done.stdout.partition("\nrun g:")[0])
    assert [command["phase"] for command in status["commands"]] == ["failed", "failed"]
    assert all("(the disk of its log is full: " in cause["message"] for cause in status["causes"])


def test_a_command_is_passed_on_as_it_was_written_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("kind: Job\nname: g\nrun: [echo, 'naïve ✓']\n", encoding="utf-8")
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = cli("run", "job.yaml", cwd=tmp_path, env=ascii_only)
    assert (done.returncode, done.stdout) == (0, "rank 0 | na\\xefve \\u2713\n"), done.stderr
    assert cli("logs", "g").stdout == "rank 0 | naïve ✓\n"
