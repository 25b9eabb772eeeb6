"""What watching the ranks costs a step: `bench/watch.py`. On gloo or, where there are GPUs, on NCCL.

The agent of a gang of 1 x 2 is stopped for two seconds and let go on for two, again and again: while it is stopped it
asks the ranks' watching threads nothing. The medians of all steps with and without it are compared.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from array import array
from pathlib import Path

import launchers
from launchers import PROGRAMS, running

BLOCK = 2.0  # well below an agent's lease


def main() -> int:
    blocks = int(sys.argv[1]) if sys.argv[1:] else 40
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "moments")
        seconds = str(2 * BLOCK * blocks + 5)
        with running(launchers.allranks(1, 2, str(PROGRAMS / "even.py"), str(file), seconds)) as run:
            run.line("running")
            time.sleep(5)
            watched, agent = [], the_agent()
            for _ in range(blocks):
                watched.append((time.time(), time.time() + BLOCK))
                time.sleep(BLOCK)
                pause(agent, BLOCK)
            run.line("succeeded")
        steps = array("d", file.read_bytes())
    took = [(steps[i], steps[i] - steps[i - 1]) for i in range(1, len(steps)) if steps[i] > watched[0][0]]
    on = [seconds for end, seconds in took if any(begin <= end <= stop for begin, stop in watched)]
    off = [seconds for end, seconds in took if not any(begin <= end <= stop for begin, stop in watched)]
    for what, of in (("median", statistics.median), ("mean", statistics.fmean)):
        cost = 100 * (of(on) / of(off) - 1)
        print(f"{what}: {1e3 * of(on):.4f} ms watched ({len(on)} steps), {1e3 * of(off):.4f} ms not: {cost:+.2f} %")
    return 0


def the_agent() -> int:
    """Return the pid of the gang's only agent: the other child of the zygote's parent."""
    rank = int(launchers.status()["nodes"][0]["ranks"][0]["pid"])
    zygote = parent_of(rank)
    init = parent_of(zygote)
    children = Path(f"/proc/{init}/task/{init}/children").read_text().split()
    (agent,) = (int(child) for child in children if int(child) != zygote)
    return agent


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def pause(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


if __name__ == "__main__":
    sys.exit(main())
