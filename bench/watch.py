"""What watching the ranks costs a step: `bench/watch.py`. On gloo or, where there are GPUs, on NCCL.

The agent of a gang of 1 x 2 is stopped for two seconds and let go on for two, again and again: while it is stopped it
asks the ranks' watching threads nothing. Each two seconds are compared with the two that follow.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from array import array
from itertools import pairwise
from pathlib import Path

import launchers
from launchers import PROGRAMS, running

BLOCK = 2.0  # well below an agent's lease


def main() -> int:
    pairs = int(sys.argv[1]) if sys.argv[1:] else 40
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "moments")
        seconds = str(2 * BLOCK * pairs + 5)
        with running(launchers.allranks(1, 2, str(PROGRAMS / "even.py"), str(file), seconds)) as run:
            run.line("running")
            time.sleep(5)
            agent, blocks = the_agent(), []
            for _ in range(pairs):
                begin = time.time()
                time.sleep(BLOCK)
                between = time.time()
                pause(agent, BLOCK)
                blocks.append((begin, between, time.time()))
            run.line("succeeded")
        ends = array("d", file.read_bytes())
    steps = [(end, end - begin) for begin, end in pairwise(ends)]
    costs = [100 * (mean(steps, begin, between) / mean(steps, between, end) - 1) for begin, between, end in blocks]
    error = statistics.stdev(costs) / pairs**0.5
    print(f"{len(steps)} steps of {1e3 * statistics.median(took for _, took in steps):.2f} ms; watching them costs")
    print(f"{statistics.fmean(costs):+.2f} % (median {statistics.median(costs):+.2f} %, standard error {error:.2f} %)")
    return 0


def mean(steps: list[tuple[float, float]], begin: float, end: float) -> float:
    """Seconds of a step of that time."""
    return statistics.fmean(seconds for moment, seconds in steps if begin < moment < end)


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
