"""Each collective on one flat buffer: how it is called, what it is fed, and what must come out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict

import torch
import torch.distributed as dist

PERIOD = 7
PIECE = PERIOD << 19
"""Elements that are filled or compared at once; a multiple of the period."""

Tensor = Any
Operation = Callable[[], object]


@dataclass
class Buffers:
    """Views of the flat buffer for one message: ``into`` receives; ``out_of`` is sent, and may be the same."""

    out_of: Tensor
    into: Tensor


def views(name: str, flat: Tensor, count: int, ranks: int) -> Buffers:
    """``count`` is elements of the whole message."""
    part = count // ranks
    if name in ("all_reduce", "broadcast"):
        return Buffers(flat[:count], flat[:count])
    if name == "all_gather":
        return Buffers(flat[count : count + part], flat[:count])
    if name == "reduce_scatter":
        return Buffers(flat[:count], flat[count : count + part])
    return Buffers(flat[:count], flat[count : 2 * count])


def operation(name: str, on: Buffers, rank: int, ranks: int) -> Callable[[], object]:
    """The call, ready to be repeated."""
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # named so from torch 2.13 on
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    calls: Dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(on.into),
        "all_gather": lambda: all_gather(on.into, on.out_of),
        "reduce_scatter": lambda: reduce_scatter(on.into, on.out_of),
        "all_to_all": lambda: dist.all_to_all_single(on.into, on.out_of),
        "broadcast": lambda: dist.broadcast(on.into, 0),
        "sendrecv": lambda: _sendrecv(on, rank, ranks),
    }
    return calls[name]


def _sendrecv(on: Buffers, rank: int, ranks: int) -> None:
    """To the next rank and from the one before, as nccl-tests' sendrecv."""
    if ranks == 1:
        on.into.copy_(on.out_of)
        return
    both = [
        dist.P2POp(dist.isend, on.out_of, (rank + 1) % ranks),
        dist.P2POp(dist.irecv, on.into, (rank - 1) % ranks),
    ]
    for work in dist.batch_isend_irecv(both):
        work.wait()


def feed(on: Buffers) -> None:
    """Small random numbers: in-place sums grow, and must not reach infinity while they are timed."""
    on.out_of.normal_().mul_(1e-30)


# ---- correctness: rank r holds (i mod 7) * (r + 1) at i, so that every sum is a whole number below 2^24


def wrong(name: str, on: Buffers, call: Callable[[], object], rank: int, ranks: int) -> int:
    """Call it once more on numbers that are known; how many elements came out wrong on this rank."""
    _fill(on.out_of, rank + 1)
    call()
    part, total = on.out_of.numel() // ranks, ranks * (ranks + 1) // 2
    if name == "all_reduce":
        return _differ(on.into, total)
    if name == "broadcast":
        return _differ(on.into, 1)
    if name == "sendrecv":
        return _differ(on.into, (rank - 1) % ranks + 1)
    if name == "reduce_scatter":
        return _differ(on.into, total, rank * part)
    first = rank * part if name == "all_to_all" else 0
    pieces = on.into.chunk(ranks)
    return sum(_differ(piece, sender + 1, first) for sender, piece in enumerate(pieces))


def _pattern(device: Any) -> Tensor:
    return torch.arange(PIECE + PERIOD, device=device).remainder_(PERIOD).to(torch.float32)


def _fill(tensor: Tensor, scale: int) -> None:
    pattern = _pattern(tensor.device) * scale
    for piece in tensor.split(PIECE):
        piece.copy_(pattern[: piece.numel()])


def _differ(tensor: Tensor, scale: int, first: int = 0) -> int:
    """Elements unlike the pattern times ``scale``, which starts at ``first``."""
    pattern = _pattern(tensor.device) * scale
    off = first % PERIOD
    return sum(int((piece != pattern[off : off + piece.numel()]).sum()) for piece in tensor.split(PIECE))
