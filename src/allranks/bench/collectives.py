"""The collectives, and bandwidth as nccl-tests defines it (its doc/PERFORMANCE.md). Standard library, Python 3.8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, List

ELEMENT = 4
"""Bytes of a float."""

ALIGNED = 16
"""nccl-tests cuts each rank's part to this many bytes (src/all_gather.cu and others, getCollByteCount)."""


@dataclass(frozen=True)
class Collective:
    """``factor`` of the number of ranks turns algbw into busbw; ``buffers`` of it is memory over message size.

    A ``sliced`` one's message is the parts of all ranks together.
    """

    name: str
    factor: Callable[[int], float]
    buffers: Callable[[int], float]
    sliced: bool = False

    def count(self, size: int, ranks: int) -> int:
        """Elements of the whole message for a wish of ``size`` bytes."""
        if not self.sliced:
            return size // ELEMENT
        return size // ranks // ALIGNED * ALIGNED // ELEMENT * ranks


COLLECTIVES: Dict[str, Collective] = {
    one.name: one
    for one in (
        Collective("all_reduce", lambda n: 2 * (n - 1) / n, lambda n: 1),
        Collective("all_gather", lambda n: (n - 1) / n, lambda n: 1 + 1 / n, sliced=True),
        Collective("reduce_scatter", lambda n: (n - 1) / n, lambda n: 1 + 1 / n, sliced=True),
        Collective("all_to_all", lambda n: (n - 1) / n, lambda n: 2, sliced=True),
        Collective("broadcast", lambda n: 1, lambda n: 1),
        Collective("sendrecv", lambda n: 1, lambda n: 2),
    )
}


def algbw(size: int, seconds: float) -> float:
    """GB/s (1e9 bytes) of a message of ``size`` bytes."""
    return size / seconds / 1e9 if seconds > 0 else 0.0


def busbw(name: str, size: int, ranks: int, seconds: float) -> float:
    """GB/s that the slowest link has to carry for it, whatever the number of ranks."""
    return algbw(size, seconds) * COLLECTIVES[name].factor(ranks)


def ladder(smallest: int, largest: int) -> List[int]:
    """Powers of two times the smallest, up to the largest."""
    sizes = []
    while smallest <= largest:
        sizes.append(smallest)
        smallest *= 2
    return sizes


def percentile(values: List[float], share: float) -> float:
    """The nearest-rank percentile; ``share`` is 0 to 1."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
