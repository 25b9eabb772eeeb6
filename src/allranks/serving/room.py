"""Whether a node's memory can hold its ranks' part of a model: asked before it is loaded, as the kernel only kills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from allranks.serving.folder import Unfit

MEMINFO = Path("/proc/meminfo")
LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
"""A container's own limit below /sys/fs/cgroup, by version 2 and by version 1. What it uses says little: files that
were read count, and go where memory is needed."""


def available(groups: Path = Path("/sys/fs/cgroup"), meminfo: Path = MEMINFO) -> int:
    """Bytes that processes of this node may still take: the machine's, or less where its container has a limit."""
    known = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    return min([int(known["MemAvailable"].split()[0]) * 1024, *_limits(groups)])


def _limits(groups: Path) -> Iterator[int]:
    for limit in LIMITS:
        try:
            yield int((groups / limit).read_text())
        except (OSError, ValueError):
            continue  # the other version, or "max"


def must_fit(size: int, free: int) -> None:
    """Raise Unfit where the weights of a node's ranks, ``size`` bytes, are more than the ``free`` ones."""
    if size > free:
        raise Unfit(
            f"out of memory: the weights of this node's ranks take {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB are "
            "free here; serve it over more nodes, or give each more memory (resources.memory)"
        )
