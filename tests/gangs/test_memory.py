"""The kernel's own OOM killer against a real gang in a memory cgroup."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from allranks.node.memory import groups
from tests.gangs.gang import RunningGang, eventually

pytestmark = pytest.mark.gang

LIMIT = 400 << 20

# A rank that, once a file tells it to, takes memory until it is killed: itself or by a process of its own.
GREEDY = """
import os, subprocess, sys, time
rank, attempt, folder = os.environ["RANK"], os.environ["ALLRANKS_ATTEMPT"], os.path.dirname(sys.argv[1])
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
eat = "taken = []\\nwhile True: taken.append(bytearray(b'x') * (8 << 20))"
for step in range(100000):
    os.write(out, f"{time.time():.4f} {attempt} {rank} {step}\\n".encode())
    if os.path.exists(f"{folder}/eat-{rank}-{attempt}"):
        exec(eat)
    if os.path.exists(f"{folder}/help-{rank}-{attempt}"):
        subprocess.run([sys.executable, "-c", eat], check=True)
    time.sleep(0.02)
"""


def write(file: Path, number: int) -> None:
    file.write_text(str(number))


@pytest.fixture
def leave() -> Iterator[Callable[[], None]]:
    """This process is in a memory cgroup with LIMIT until it leaves; a gang that it started before stays there.

    It must leave before memory runs out: the kernel would kill the largest, which may be this one.
    """
    found = groups(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    if not found:
        pytest.skip("no memory cgroup can be seen here")
    before, child = Path(found[0].folder), Path(found[0].folder) / f"allranks-test-{os.getpid()}"
    try:
        child.mkdir()
        limits = ["memory.limit_in_bytes"] if found[0].version == 1 else ["memory.max", "memory.swap.max"]
        for name, value in zip(limits, (LIMIT, 0), strict=False):
            (child / name).write_text(str(value))
    except OSError as error:
        with contextlib.suppress(OSError):
            child.rmdir()
        pytest.skip(f"no memory cgroup with a limit can be made here (root, and a writable tree, are needed): {error}")
    (child / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield lambda: write(before / "cgroup.procs", os.getpid())
    finally:
        write(before / "cgroup.procs", os.getpid())
        eventually("the cgroup is empty", lambda: not (child / "cgroup.procs").read_text())
        child.rmdir()


def test_the_oom_killer_is_told_from_somebody_who_kills(tmp_path: Path, leave: Callable[[], None]) -> None:
    with RunningGang(tmp_path, script=GREEDY, options=("--restarts", "3")) as g:
        leave()
        g.stepping(0)
        time.sleep(1.5)  # so that the counters were looked at while the ranks ran
        (tmp_path / "eat-3-0").touch()
        g.stepping(1, seconds=30)
        g.kill(g.pid_of(2))
        g.stepping(2, seconds=30)
        (tmp_path / "help-1-2").touch()
        g.stepping(3, seconds=30)
        by_kernel, by_somebody, of_helper = g.status()["causes"]
    told = [by_kernel[name] for name in ("kind", "rank", "signal", "exit")]
    assert told == ["oom", 3, "SIGKILL", 137], by_kernel
    words = "rank 3 on node 1: killed by the kernel for memory: its cgroup's limit is 400 MiB, rank 3 used "
    assert by_kernel["message"].startswith(words)
    assert by_somebody["kind"] == "signal"
    assert by_somebody["message"] == "rank 2 on node 1: killed by SIGKILL"
    assert (of_helper["kind"], of_helper["rank"]) == ("oom", 1)
    assert "died with <Signals.SIGKILL: 9>" in of_helper["message"]
    assert "the kernel killed a process of its node for memory: its cgroup's limit is 400 MiB" in of_helper["message"]
