"""Train a small digit classifier with DeepSpeed ZeRO, on as many ranks as there are.

Runs under allranks, torchrun or the deepspeed launcher alike; resumes from its newest complete checkpoint.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from allranks import checkpoint


def main() -> None:
    args = parse_arguments()
    forgo_compiled_all_reduce()
    torch.manual_seed(0)
    engine = start_engine(args)
    train, held_out = split_digits()
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(train, seed=0)
    loader = DataLoader(train, batch_size=args.batch, sampler=sampler)

    first = resume(engine, args.checkpoints)
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(engine, loader, say_first=epoch == first)
        save(engine, args.checkpoints, epoch)
        say(f"epoch {epoch + 1}/{args.epochs}: loss {loss:.4f}")

    correct = count_correct(engine, held_out)
    say(f"held-out accuracy {correct / len(held_out):.4f} ({correct} of {len(held_out)})")
    finish(engine, args)


def parse_arguments() -> argparse.Namespace:
    run = os.environ.get("ALLRANKS_RUN", "digits")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32, help="samples a step and rank")
    parser.add_argument("--zero", type=int, default=2, choices=(0, 1, 2), help="ZeRO stage")
    parser.add_argument("--checkpoints", type=Path, default=Path("out", run, "checkpoints"))
    parser.add_argument("--model", type=Path, default=Path("out", run, "model.pt"), help="where the result goes")
    parser.add_argument("--local_rank", type=int, help="what the deepspeed launcher passes; LOCAL_RANK says the same")
    return parser.parse_args()


def forgo_compiled_all_reduce() -> None:
    """Keep DeepSpeed from compiling its shared-memory all-reduce for CPU ranks.

    It needs a C++ compiler and up to a minute at the first start, and without a compiler the start fails. Only a gang
    on a single node can use it; gloo does the work here. ``build_shm_op`` in deepspeed/comm/torch.py asks this dict.
    """
    deepspeed.ops.__compatible_ops__ = {}


def start_engine(args: argparse.Namespace) -> deepspeed.DeepSpeedEngine:
    config = {
        "train_micro_batch_size_per_gpu": args.batch,
        "optimizer": {"type": "Adam", "params": {"lr": 5e-3, "torch_adam": True}},
        "zero_optimization": {"stage": args.zero},
    }
    model = build_model()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    return engine


def build_model() -> nn.Module:
    """Build a small convolutional net for images of 8 x 8 pixels."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


def split_digits() -> tuple[TensorDataset, TensorDataset]:
    """Four fifths to train with, one fifth held out; the same split on every rank."""
    pixels, labels = load_digits(return_X_y=True)
    parts = train_test_split(pixels / 16, labels, test_size=0.2, stratify=labels, random_state=0)
    train_x, held_x, train_y, held_y = (torch.as_tensor(part) for part in parts)
    return TensorDataset(train_x.float(), train_y), TensorDataset(held_x.float(), held_y)


def train_epoch(engine: deepspeed.DeepSpeedEngine, loader: DataLoader[tuple[Tensor, ...]], say_first: bool) -> float:
    """One pass over the data; returns the mean loss of all ranks."""
    total = torch.zeros(2, device=engine.device)
    for step, batch in enumerate(loader):
        pixels, labels = (part.to(engine.device) for part in batch)
        loss = cross_entropy(engine(pixels), labels)
        engine.backward(loss)
        engine.step()
        total += torch.stack([loss.detach(), torch.ones_like(loss)])
        if say_first and step == 0:
            say(f"first step done on {dist.get_world_size()} ranks, {engine.device.type}/{dist.get_backend()}")
    dist.all_reduce(total)
    return float(total[0] / total[1])


def count_correct(engine: deepspeed.DeepSpeedEngine, held_out: TensorDataset) -> int:
    """Each rank judges its own share of the held-out digits; the counts are added up."""
    pixels, labels = (part[dist.get_rank() :: dist.get_world_size()].to(engine.device) for part in held_out.tensors)
    with torch.no_grad():
        correct = (engine(pixels).argmax(dim=1) == labels).sum()
    dist.all_reduce(correct)
    return int(correct)


def resume(engine: deepspeed.DeepSpeedEngine, folder: Path) -> int:
    """Load the newest complete checkpoint, if there is one; returns the epoch to go on with."""
    found = checkpoint.newest(folder, start_over=True)
    if found is None or found.step is None:
        return 0
    engine.load_checkpoint(str(folder), tag=found.path.name)
    say(f"resumed after epoch {found.step + 1}")
    return found.step + 1


def save(engine: deepspeed.DeepSpeedEngine, folder: Path, epoch: int) -> None:
    """Every rank writes its part; older checkpoints go when all have written: one that is complete is always there."""
    engine.save_checkpoint(str(folder), tag=f"epoch-{epoch}")
    if dist.get_rank() == 0:
        for old in older_than(folder, epoch - 1):
            shutil.rmtree(old)


def older_than(folder: Path, epoch: int) -> Iterator[Path]:
    return (path for path in folder.glob("epoch-*") if int(path.name.removeprefix("epoch-")) < epoch)


def finish(engine: deepspeed.DeepSpeedEngine, args: argparse.Namespace) -> None:
    """Write the model; the checkpoints have served, and the next run starts from the beginning."""
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save(engine.module.state_dict(), args.model)
        shutil.rmtree(args.checkpoints, ignore_errors=True)
        say(f"model written to {args.model}")
    dist.destroy_process_group()


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
