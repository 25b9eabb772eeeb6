"""How gangs on the real operators get over faults, on the cluster of `make cluster`: `bench/operators.py`.

Gangs of 2 nodes whose ranks import torch and all-reduce, or with --plain import nothing and meet over a socket each,
and which may ask their API server (`failure.force_delete`). Faults of one gang (rank, agent, pod, pod-0) are met by
one engine's after the other's, those of a host by the gangs of all engines at once: a round of them takes as long as
its slowest. A time is from the fault (of a cut: from its end) to the first step of the last rank in the next attempt,
by the clock that all pods of the cluster share. What is not as it should be (cause, budget, pods) is listed below
each row.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the tests' cluster is no part of the package

from bench.faults import alone, together  # noqa: E402
from bench.faults.gangs import BROKEN, PLAIN, STEPPING, Gang, Row  # noqa: E402
from tests.cluster.cluster import Cluster  # noqa: E402

ENGINES = ("jobset", "mpijob", "trainjob", "pytorchjob")
ENDS = {"end": False, "spent": True}
EVERY = 3.0
"""Seconds between two looks at each of many gangs: what is measured is told by their own lines."""


def one_by_one(
    cluster: Cluster, engine: str, folder: Path, names: Sequence[str], times: int, program: str
) -> list[Row]:
    """All of these faults, on one gang of that program as long as it lives."""
    if not names:
        return []
    gang, rows = Gang(cluster, engine, folder, program), []
    try:
        for name in names:
            rows.append(row := Row(engine, name))
            for turn in range(times):
                try:
                    if alone.is_spent(gang, name, turn):
                        gang.close()
                        gang = Gang(cluster, engine, folder, program)
                    alone.meet(gang, row, turn)
                except BROKEN as problem:
                    row.wrong.append(f"time {turn + 1}: {problem}")
            show(row, times)
    finally:
        gang.close()
    return rows


def side_by_side(cluster: Cluster, engines: Sequence[str], folder: Path, names: Sequence[str], times: int) -> list[Row]:
    """All of these faults, each time on new gangs of all engines, which have the last host of the cluster in common."""
    host = cluster.nodes[-1]
    rows = [Row(engine, name) for name in names for engine in engines]
    for name in names:
        mine = {row.engine: row for row in rows if row.what == name}
        for turn in range(times):
            with sharing(cluster, engines, folder, host, memory=name in together.REMEMBERING) as gangs:
                together.FAULTS[name](cluster, gangs, mine, host)
            print(f"  {name}: round {turn + 1} of {times}", flush=True)
        for row in mine.values():
            show(row, times)
    return rows


@contextmanager
def sharing(cluster: Cluster, engines: Sequence[str], folder: Path, host: str, memory: bool) -> Iterator[list[Gang]]:
    """A gang of each engine, with one node on that host."""
    gangs: list[Gang] = []
    try:
        for engine in engines:
            hosts = [cluster.nodes[0], host]
            gangs.append(Gang(cluster, engine, folder, ranks=1, hosts=hosts, memory=memory, every=EVERY))
        yield gangs
    finally:
        for gang in gangs:
            gang.close()


def show(row: Row, times: int) -> None:
    each = "  each: " + " ".join(f"{seconds:.2f}" for seconds in row.took)
    print(row.line(times), each, *row.wrong, sep="\n", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [*alone.FAULTS, *together.FAULTS, *ENDS]
    parser.add_argument("--times", type=int, default=5, help="how often each fault is met")
    parser.add_argument("--engine", action="append", choices=ENGINES, help="only this one; may be repeated")
    parser.add_argument("--fault", action="append", choices=every, help="only this one; may be repeated")
    parser.add_argument("--plain", action="store_true", help="faults of one gang: ranks that import nothing")
    args = parser.parse_args()
    program = PLAIN if args.plain else STEPPING
    wanted, engines = args.fault or every, args.engine or ENGINES
    cluster, rows = Cluster.running(), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for engine in engines:
            names = [one for one in alone.FAULTS if one in wanted]
            rows += one_by_one(cluster, engine, folder, names, args.times, program)
            for end in [one for one in ENDS if one in wanted for _ in range(args.times)]:
                rows.append(row := alone.ends(cluster, engine, folder, ENDS[end]))
                show(row, 1)
        those = [one for one in together.FAULTS if one in wanted]
        rows += side_by_side(
            cluster, engines, folder, [one for one in those if one in together.REMEMBERING], args.times
        )
        rows += side_by_side(cluster, engines, folder, [one for one in those if one not in together.REMEMBERING], 1)
    return report(rows, args.times)


def report(rows: Sequence[Row], times: int) -> int:
    """Print the table, a line for each fault and engine; returns the program's exit code."""
    print("\n| fault | engine | right | median | spread |\n|---|---|---|---|---|")
    for what, engine in sorted({(row.what, row.engine) for row in rows}):
        same = [row for row in rows if (row.what, row.engine) == (what, engine)]
        whole = Row(engine, what, [one for row in same for one in row.took], [one for row in same for one in row.wrong])
        print(whole.line(1 if what in together.FORGETTING else times))
    return 1 if any(row.wrong for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
