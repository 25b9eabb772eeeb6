"""Least squares by gradient descent: each rank holds its share of the rows, the gradients are averaged."""

from __future__ import annotations

import argparse
import sys

import torch
import torch.distributed as dist

ROWS, WIDTH = 4096, 8
DIVERGED = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=0.1, help="step size; above 1 it diverges")
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    loss = fit(args.rate, args.steps)
    if dist.get_rank() == 0:
        print(f"rate {args.rate:g}: loss {loss:.3g} after {args.steps} steps", flush=True)
    dist.barrier()  # nobody ends, and so ends the others, before it is printed
    dist.destroy_process_group()
    return 0 if loss < 1 else DIVERGED


def fit(rate: float, steps: int) -> float:
    """Mean squared error over all ranks' rows after the last step."""
    rows, wanted = share_of_rows()
    weights, loss = torch.zeros(WIDTH), torch.tensor(0.0)
    for _ in range(steps):
        error = rows @ weights - wanted
        gradient, loss = 2 * rows.T @ error / len(rows), (error**2).mean()
        dist.all_reduce(gradient)
        weights -= rate / 2 * gradient / dist.get_world_size()
    dist.all_reduce(loss)
    return float(loss) / dist.get_world_size()


def share_of_rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Random rows, other ones on each rank, and what they should give: 0, 1, 2 ... times their columns."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    rows = torch.randn(ROWS // dist.get_world_size(), WIDTH, generator=generator)
    return rows, rows @ torch.arange(float(WIDTH))


if __name__ == "__main__":
    sys.exit(main())
