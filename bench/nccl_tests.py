"""``allranks bench`` beside nccl-tests on the GPUs of this host: interleaved, all sizes, medians of the rounds.

    python bench/nccl_tests.py --perf nccl-tests/build/all_reduce_perf --gpus 2 [--rounds 5] [--out FOLDER] [-- MORE...]

nccl-tests runs one thread a GPU (-t), allranks one process a GPU. Both in place, and as many iterations: nccl-tests'
time has a launch and a wait in it once, which a hundred iterations make small.
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


def theirs(perf: str, gpus: int, largest: str) -> dict[int, float]:
    """Seconds by size."""
    sizes = ["-b", SMALLEST, "-e", largest, "-f", "2", "-n", ITERATIONS, "-w", "5", "-c", "0"]
    done = subprocess.run([perf, *sizes, "-t", str(gpus), "-g", "1"], capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"{perf} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return {row.size: row.seconds for row in read(done.stdout, in_place=True).rows}


def ours(gpus: int, largest: str, more: list[str]) -> dict[int, float]:
    """Seconds by size."""
    command = [
        sys.executable,
        "-m",
        "allranks",
        "bench",
        "all_reduce",
        "--max-size",
        largest,
        "--iterations",
        ITERATIONS,
    ]
    command += [] if "--nodes" in more else ["--ranks", str(gpus)]
    done = subprocess.run([*command, "-o", "json", *more], capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"allranks bench failed:\n{done.stderr[-3000:]}")
    return {row["size"]: row["seconds"] for row in json.loads(done.stdout)["curves"][0]["rows"]}


def main() -> int:
    """Print the table; 1 when one of the two claims does not hold."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--perf", required=True)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-size", default="4G")
    parser.add_argument("--out", type=Path)
    parser.add_argument("more", nargs="*", help="further options of allranks bench, after --")
    wanted = parser.parse_args()
    pictures = ["--png", str(wanted.out / "bench.png"), "--html", str(wanted.out / "bench.html")] if wanted.out else []
    found: dict[str, dict[int, list[float]]] = {"theirs": defaultdict(list), "ours": defaultdict(list)}
    for number in range(wanted.rounds):
        last = number == wanted.rounds - 1
        for size, seconds in theirs(wanted.perf, wanted.gpus, wanted.max_size).items():
            found["theirs"][size].append(seconds)
        for size, seconds in ours(wanted.gpus, wanted.max_size, [*wanted.more, *(pictures if last else [])]).items():
            found["ours"][size].append(seconds)
        print(f"round {number + 1} of {wanted.rounds}", file=sys.stderr, flush=True)
    return table(found["theirs"], found["ours"])


def table(theirs: dict[int, list[float]], ours: dict[int, list[float]]) -> int:
    """Medians, and how far the rounds were apart (highest over lowest)."""
    print(f"{'size':>10} {'nccl-tests us':>14} {'spread':>7} {'allranks us':>12} {'spread':>7} {'ratio':>7}")
    kept = True
    for size in sorted(set(theirs) & set(ours)):
        a, b = median(theirs[size]), median(ours[size])
        spread = [max(values) / min(values) for values in (theirs[size], ours[size])]
        good = b < a if size < CROSSING else abs(b / a - 1) <= 0.01 if size >= LARGE else True
        kept = kept and good
        mark = "" if good else " !"
        print(
            f"{bytes_(size):>10} {micro(a):>14} {spread[0]:>7.3f} {micro(b):>12} {spread[1]:>7.3f} {b / a:>7.3f}{mark}"
        )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
