"""A plain DistributedDataParallel loop that takes its time, so that you can kill a rank and see it come back.

Runs under allranks or torchrun alike; resumes from its checkpoint.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer

from allranks import checkpoint


def main() -> None:
    args = parse_arguments()
    device = start()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    optimizer = SGD(model.parameters(), lr=0.1)
    first = resume(model, optimizer, args.checkpoint, device)
    ranks = DistributedDataParallel(model)

    for step in range(first, args.steps):
        loss = train_step(ranks, optimizer, step, device)
        if (step + 1) % args.every == 0:
            save(model, optimizer, args.checkpoint, step)
        say(f"step {step + 1}/{args.steps}: loss {loss:.5f}")
        time.sleep(args.pause)
    finish(args.checkpoint)


def parse_arguments() -> argparse.Namespace:
    run = os.environ.get("ALLRANKS_RUN", "restart")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--every", type=int, default=5, help="steps between two checkpoints")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds to rest after each step")
    parser.add_argument("--checkpoint", type=Path, default=Path("out", run, "checkpoint.pt"))
    return parser.parse_args()


def start() -> torch.device:
    """Join the gang: NCCL where there are GPUs, gloo where there are none."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return device


def train_step(model: nn.Module, optimizer: Optimizer, step: int, device: torch.device) -> float:
    """One step on a batch that only this rank and step have; returns this rank's loss."""
    draw = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    inputs = torch.randn(32, 16, generator=draw).to(device)
    loss = mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True).sin())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def resume(model: nn.Module, optimizer: Optimizer, path: Path, device: torch.device) -> int:
    """Load the checkpoint, if there is one; returns the step to go on with."""
    found = checkpoint.newest(path.parent, start_over=True)
    if found is None:
        return 0
    state = torch.load(found.path, map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    say(f"resumed after step {state['step'] + 1}")
    return int(state["step"]) + 1


def save(model: nn.Module, optimizer: Optimizer, path: Path, step: int) -> None:
    """Rank 0 writes for all: whole, or what was there stays."""
    if dist.get_rank() == 0:
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        checkpoint.save(state, path)


def finish(path: Path) -> None:
    """Delete the checkpoint, which has served: the next run starts from the beginning."""
    dist.barrier()
    if dist.get_rank() == 0:
        path.unlink(missing_ok=True)
    dist.destroy_process_group()


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
