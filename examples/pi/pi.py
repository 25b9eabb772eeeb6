"""Pi by the trapezoid rule: each rank integrates 4 / (1 + x^2) over its share of [0, 1]; the shares are added up."""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    args = parse_arguments()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    area = torch.tensor(share_of_pi(args.intervals, rank, ranks), dtype=torch.float64)
    dist.reduce(area, dst=0)
    if rank == 0:
        report(area.item(), args.intervals, ranks, args.out)
    dist.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--intervals", type=int, default=1_000_000, help="trapezoids of all ranks together")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder that gets one file a run")
    return parser.parse_args()


def share_of_pi(intervals: int, rank: int, ranks: int) -> float:
    """Area of this rank's trapezoids: intervals ``first`` up to ``last``, which differ by one at most among ranks."""
    first, last = intervals * rank // ranks, intervals * (rank + 1) // ranks
    if first == last:
        return 0.0
    x = torch.arange(first, last + 1, dtype=torch.float64) / intervals
    return float(torch.trapezoid(4 / (1 + x * x), dx=1 / intervals))


def report(pi: float, intervals: int, ranks: int, folder: Path) -> None:
    """Print the result and write it to a file of this run's own: its name (under allranks) and the time."""
    run = os.environ.get("ALLRANKS_RUN", "pi")
    path = folder / f"{run}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    text = f"pi = {pi:.12f}, off by {abs(pi - math.pi):.1e}, {intervals} trapezoids on {ranks} ranks"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
    print(text, f"written to {path}", sep="\n", flush=True)


if __name__ == "__main__":
    main()
