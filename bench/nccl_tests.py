"""``allranks bench`` beside nccl-tests on the GPUs of this host: interleaved, all sizes, medians of the rounds.

    python bench/nccl_tests.py --perf nccl-tests/build/all_reduce_perf --gpus 2 [--rounds 5] [--symmetric]
        [--out FOLDER] [-- MORE...]

nccl-tests runs one thread a GPU (-t), allranks one process a GPU. Both in place, in memory of NCCL's, and as many
iterations: nccl-tests' time has a launch and a wait in it once, which a hundred iterations make small. The third
column is nccl-tests with CUDA graphs (-G), up to 1 MiB. ``--symmetric`` has both register their memory (-R 2).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

from allranks.bench.fromlog import read
from allranks.bench.table import bytes_, micro

SMALLEST, CROSSING, LARGE = "32K", 1 << 20, 16 << 20
ITERATIONS = "100"
Times = dict[int, float]
"""Seconds by size."""


def theirs(perf: str, gpus: int, largest: str, *more: str) -> Times:
    sizes = ["-b", SMALLEST, "-e", largest, "-f", "2", "-n", ITERATIONS, "-w", "5", "-c", "0"]
    done = subprocess.run(
        [perf, *sizes, "-t", str(gpus), "-g", "1", *more], capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        sys.exit(f"{perf} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return {row.size: row.seconds for row in read(done.stdout, in_place=True).rows}


def ours(gpus: int, largest: str, more: list[str]) -> Times:
    command = [sys.executable, "-m", "allranks", "bench", "all_reduce"]
    command += ["--max-size", largest, "--iterations", ITERATIONS]
    command += [] if "--nodes" in more else ["--ranks", str(gpus)]
    done = subprocess.run([*command, "-o", "json", *more], capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"allranks bench failed:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    rows = json.loads(done.stdout)["curves"][0]["rows"]
    if any(row["wrong"] for row in rows):
        sys.exit(f"allranks bench had wrong results: {rows}")
    return {row["size"]: row["seconds"] for row in rows}


def main() -> int:
    """Print the table after each round; 1 when one of the two claims does not hold."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--perf", required=True)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-size", default="4G")
    parser.add_argument("--symmetric", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("more", nargs="*", help="further options of allranks bench, after --")
    wanted = parser.parse_args()
    registered = ["-R", "2"] if wanted.symmetric else []
    memory = ["--memory", "symmetric"] if wanted.symmetric else []
    pictures = ["--png", str(wanted.out / "bench.png"), "--html", str(wanted.out / "bench.html")] if wanted.out else []
    found: dict[str, dict[int, list[float]]] = {name: defaultdict(list) for name in ("plain", "ours", "graphs")}
    kept = True
    for number in range(wanted.rounds):
        last = number == wanted.rounds - 1
        times = {
            "plain": theirs(wanted.perf, wanted.gpus, wanted.max_size, *registered),
            "ours": ours(wanted.gpus, wanted.max_size, [*wanted.more, *memory, *(pictures if last else [])]),
            "graphs": theirs(wanted.perf, wanted.gpus, "1M", *registered, "-G", "10"),
        }
        for name, by_size in times.items():
            for size, seconds in by_size.items():
                found[name][size].append(seconds)
        print(f"round {number + 1} of {wanted.rounds}", flush=True)
        kept = table(found["plain"], found["ours"], found["graphs"])
    return 0 if kept else 1


def table(theirs: dict[int, list[float]], ours: dict[int, list[float]], graphs: dict[int, list[float]]) -> bool:
    """Medians, and how far the rounds were apart (highest over lowest). Whether both claims hold."""
    print(
        f"{'size':>10} {'nccl-tests us':>14} {'spread':>7} {'allranks us':>12} {'spread':>7} {'ratio':>7} {'-G us':>8}"
    )
    kept = True
    for size in sorted(set(theirs) & set(ours)):
        a, b = median(theirs[size]), median(ours[size])
        spread = [max(values) / min(values) for values in (theirs[size], ours[size])]
        good = b < a if size < CROSSING else abs(b / a - 1) <= 0.01 if size >= LARGE else True
        kept = kept and good
        third = micro(median(graphs[size])) if size in graphs else ""
        print(
            f"{bytes_(size):>10} {micro(a):>14} {spread[0]:>7.3f} {micro(b):>12} {spread[1]:>7.3f} {b / a:>7.3f}"
            f" {third:>8}{'' if good else ' !'}",
            flush=True,
        )
    return kept


if __name__ == "__main__":
    sys.exit(main())
