"""What a rank is asked, and how rank 0 tells."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, List, Tuple

MARK = "allranks.bench"
"""The key by which a line of ours is known among what NCCL and torch print."""


@dataclass(frozen=True)
class Wishes:
    """``smallest`` and ``largest`` are bytes (0: what suits the device).

    ``rounds`` is pairs, bisect, or empty for a sweep over sizes.

    Below ``graph_below`` bytes CUDA graphs are timed; a size is measured for at most ``patience`` seconds.
    ``memory`` of GPUs is nccl, symmetric or torch.
    """

    collectives: Tuple[str, ...] = ("all_reduce",)
    smallest: int = 32 << 10
    largest: int = 0
    iterations: int = 20
    warmup: int = 5
    backend: str = "auto"
    graph_below: int = 32 << 20
    memory: str = "nccl"
    rounds: str = ""
    patience: float = 10.0
    timeout: float = 120.0

    @classmethod
    def parse(cls, text: str) -> Wishes:
        values = json.loads(text)
        return cls(**{**values, "collectives": tuple(values.get("collectives", cls.collectives))})

    def text(self) -> str:
        """As one argument."""
        return json.dumps({**vars(self), "collectives": list(self.collectives)})


@dataclass(frozen=True)
class Me:
    """Who this rank is, from the environment that every engine gives."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    node: int
    nodes: int

    @classmethod
    def find(cls) -> Me:
        number = {name: int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
        local = number["LOCAL_WORLD_SIZE"]
        return cls(
            number["RANK"], number["WORLD_SIZE"], number["LOCAL_RANK"], local, number["RANK"] // local,
            number["WORLD_SIZE"] // local,
        )  # fmt: skip


def tell(what: str, **fields: Any) -> None:
    """Print one line of ours."""
    print(json.dumps({MARK: what, **fields}), flush=True)


def network() -> List[Any]:
    """Name and Gbit/s of each port that this node can use for RDMA; else of each netdev that is up."""
    from allranks.fabric.devices import read_host
    from allranks.fabric.tree import open_tree

    host = read_host(open_tree("/"))
    ports = [[port.name, port.rate] for port in host.ports if not host.why_not(port) and port.rate]
    return ports or [[dev.name, dev.speed] for dev in host.netdevs if dev.is_up and dev.speed and dev.name != "lo"]
