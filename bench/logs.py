"""64 ranks x 1,000 lines a second, followed live: what is lost or out of order, and what our part of it costs.

Our part is the follower, the agents, their supervisor and the zygote; the ranks' own time is not counted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import launchers
from launchers import PROGRAMS

NODES = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--rate", type=int, default=1000, help="lines a second of each rank")
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    lines = int(args.rate * args.seconds)
    program = [str(PROGRAMS / "lines.py"), str(args.rate), str(args.seconds)]
    command = launchers.allranks(NODES, args.ranks // NODES, *program, name="bench-logs")
    with tempfile.TemporaryFile() as out:
        cost, wall = _follow(command, out.fileno())
        out.seek(0)
        lost, misplaced = _judge(out.read().decode(), args.ranks, lines)
    print(f"{args.ranks} ranks x {args.rate} lines/s x {args.seconds:g} s: {lost} lost, {misplaced} out of order")
    follower, *others = cost
    shares = f"follower {follower:.2f} s; supervisor, agents, zygote {sum(others):.2f} s"
    print(f"{shares}; together {100 * sum(cost) / wall:.0f} % of a core over {wall:.1f} s")
    return 1 if lost or misplaced or sum(cost) > wall else 0


def _follow(command: list[str], out: int) -> tuple[list[float], float]:
    """Processor seconds of the follower first and of the gang's own processes, and how long it took.

    Looked at while they live: what the kernel adds up when a process ends has the ranks in it.
    """
    began = time.monotonic()
    follower = subprocess.Popen(command, stdout=out, stdin=subprocess.DEVNULL)
    cost = {follower.pid: 0.0}
    while follower.poll() is None:
        for pid in [follower.pid, *_ours(follower.pid)]:
            try:
                cost[pid] = _cpu(pid)
            except OSError:
                pass  # it has ended since
        time.sleep(0.1)
    return list(cost.values()), time.monotonic() - began


def _ours(pid: int) -> list[int]:
    """The supervisor, and its children: agents and zygote."""
    supervisors = _children(pid)
    return supervisors + [child for supervisor in supervisors for child in _children(supervisor)]


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _judge(text: str, ranks: int, lines: int) -> tuple[int, int]:
    seen: dict[str, int] = {}
    misplaced = 0
    for line in text.splitlines():
        rank, number = line.partition(" | ")[2].split(" ", 2)[:2]
        misplaced += int(number) != seen.get(rank, 0)
        seen[rank] = seen.get(rank, 0) + 1
    return ranks * lines - sum(seen.values()), misplaced


if __name__ == "__main__":
    sys.exit(main())
