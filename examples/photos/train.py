"""Train a small convolutional net with DeepSpeed to read digits that are drawn over photographs.

The classic DeepSpeed program, run by allranks as well as by mpirun, torchrun or the deepspeed launcher:

    mpirun -np 4 python train.py --deepspeed --deepspeed_config ds_config.json --deepspeed_mpi

Images are colour and 32 x 32, as CIFAR's are.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits, load_sample_images
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

SIZE = 32


def main() -> None:
    args = parse_arguments()
    # On CPU it would compile an all-reduce that only a gang on a single node can use.
    deepspeed.ops.__compatible_ops__ = {}
    # Where nothing has set RANK and MASTER_ADDR, plain mpirun that is, DeepSpeed asks MPI for them.
    deepspeed.init_distributed(auto_mpi_discovery=True)
    torch.manual_seed(0)
    model = build_model()
    engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    train, train_labels, held_out, held_out_labels = split_digits()
    temple, flower = photographs()

    for epoch in range(args.epochs):
        order = torch.randperm(len(train), generator=seeded(epoch))[mine(len(train))]
        images = draw(train[order], temple, seeded(epoch, dist.get_rank()))
        loss = train_epoch(engine, images, train_labels[order])
        say(f"epoch {epoch + 1}/{args.epochs}: loss {loss:.4f}")

    # Neither these digits nor this photograph have been seen.
    images = draw(held_out, flower, seeded(0))[mine(len(held_out), drop=False)]
    correct = count_correct(engine, images, held_out_labels[mine(len(held_out), drop=False)])
    say(f"held-out accuracy {correct / len(held_out):.4f} ({correct} of {len(held_out)})")
    save(engine, args.model)
    dist.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    run = os.environ.get("ALLRANKS_RUN", "photos")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--model", type=Path, default=Path("out", run, "model.pt"), help="where the result goes")
    parser.add_argument("--deepspeed_mpi", action="store_true", help="as old scripts say it; MPI is found anyway")
    parser.add_argument("--local_rank", type=int, help="what the deepspeed launcher passes; LOCAL_RANK says the same")
    deepspeed.add_config_arguments(parser)
    return parser.parse_args()


def build_model() -> nn.Module:
    """Build three times a convolution and half the size, and two layers on top."""
    layers: list[nn.Module] = []
    for channels, wider in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(channels, wider, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10))


# Data


def split_digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four fifths of scikit-learn's handwritten digits and their labels, and the same of the fifth held out."""
    pixels, labels = load_digits(return_X_y=True)
    parts = train_test_split(pixels / 16, labels, test_size=0.2, stratify=labels, random_state=0)
    train, held_out, train_labels, held_out_labels = (torch.as_tensor(part) for part in parts)
    return as_images(train), train_labels, as_images(held_out), held_out_labels


def as_images(pixels: Tensor) -> Tensor:
    """As large as the photographs' pieces, from 8 x 8."""
    return interpolate(pixels.float().view(-1, 1, 8, 8), size=(SIZE, SIZE), mode="bilinear")


def photographs() -> list[Tensor]:
    """scikit-learn's two photographs, a Chinese temple and a flower: 3 x 427 x 640, from 0 to 1."""
    return [torch.tensor(photo).permute(2, 0, 1) / 255 for photo in load_sample_images().images]


def draw(digits: Tensor, photo: Tensor, chance: torch.Generator) -> Tensor:
    """Each digit as the difference to a piece of the photograph, as MNIST-M is made of MNIST."""
    _, height, width = photo.shape
    tops = torch.randint(height - SIZE, (len(digits),), generator=chance).tolist()
    lefts = torch.randint(width - SIZE, (len(digits),), generator=chance).tolist()
    pieces = [photo[:, top : top + SIZE, left : left + SIZE] for top, left in zip(tops, lefts, strict=True)]
    return (torch.stack(pieces) - digits).abs()


def mine(count: int, drop: bool = True) -> slice:
    """This rank's share of so many; with ``drop`` all shares are of one size, as ranks that step together need."""
    ranks = dist.get_world_size()
    return slice(dist.get_rank(), count - count % ranks if drop else count, ranks)


def seeded(*numbers: int) -> torch.Generator:
    return torch.Generator().manual_seed(sum(number * 1000**place for place, number in enumerate(numbers)))


# Training


def train_epoch(engine: deepspeed.DeepSpeedEngine, images: Tensor, labels: Tensor) -> float:
    """One pass over this rank's images; returns the mean loss of all ranks."""
    size = engine.train_micro_batch_size_per_gpu()
    total = torch.zeros(2, device=engine.device)
    for batch, wanted in zip(images.split(size), labels.split(size), strict=True):
        loss = cross_entropy(engine(batch.to(engine.device)), wanted.to(engine.device))
        engine.backward(loss)
        engine.step()
        total += torch.stack([loss.detach(), torch.ones_like(loss)])
    dist.all_reduce(total)
    return float(total[0] / total[1])


def count_correct(engine: deepspeed.DeepSpeedEngine, images: Tensor, labels: Tensor) -> int:
    """Each rank judges its share; the counts are added up."""
    with torch.no_grad():
        correct = (engine(images.to(engine.device)).argmax(dim=1) == labels.to(engine.device)).sum()
    dist.all_reduce(correct)
    return int(correct)


def save(engine: deepspeed.DeepSpeedEngine, path: Path) -> None:
    if dist.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(engine.module.state_dict(), path)
        say(f"model written to {path}")


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
