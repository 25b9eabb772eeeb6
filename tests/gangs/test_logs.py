"""What real ranks print: bounded on disk, shown live, found by time, whatever they do to their streams."""

from __future__ import annotations

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
