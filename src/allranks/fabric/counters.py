"""How many bytes went through RDMA ports and through netdevs, by the NICs' own counters.

The two are apart: what RDMA carries is in no netdev's statistics (on mlx5 ``ip -s link`` stays still meanwhile).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Mapping

from allranks.fabric.devices import CLASS
from allranks.fabric.tree import Tree

WORD = 4
"""port_xmit_data counts words of four bytes (the kernel's Documentation/ABI/stable/sysfs-class-infiniband)."""


@dataclass(frozen=True)
class Counters:
    """Bytes received and sent since the devices came up, by ``device:port`` and by netdev without loopback."""

    rdma: Mapping[str, int]
    netdevs: Mapping[str, int]

    def since(self, earlier: Counters) -> Counters:
        """What was added; a counter that was reset in between counts from 0."""
        return Counters(_added(self.rdma, earlier.rdma), _added(self.netdevs, earlier.netdevs))

    @property
    def total(self) -> Dict[str, int]:
        return {"rdma": sum(self.rdma.values()), "tcp": sum(self.netdevs.values())}


def _added(now: Mapping[str, int], before: Mapping[str, int]) -> Dict[str, int]:
    return {name: value - before.get(name, 0) if value >= before.get(name, 0) else value for name, value in now.items()}


def read_counters(tree: Tree) -> Counters:
    """All that can be read; some drivers have no counters, and in a pod its own netdevs alone are seen."""
    rdma = {}
    for device in tree.names(CLASS):
        for port in tree.names(f"{CLASS}/{device}/ports"):
            folder = f"{CLASS}/{device}/ports/{port}/counters"
            words = [_number(tree, f"{folder}/{name}") for name in ("port_xmit_data", "port_rcv_data")]
            if any(words):
                rdma[f"{device}:{port}"] = sum(words) * WORD
    netdevs = {
        name: sum(_number(tree, f"sys/class/net/{name}/statistics/{way}_bytes") for way in ("rx", "tx"))
        for name in tree.names("sys/class/net")
        if name != "lo"
    }
    return Counters(rdma, netdevs)


def _number(tree: Tree, path: str) -> int:
    text = tree.read(path) or ""
    return int(text) if re.fullmatch(r"\d{1,20}", text) else 0
