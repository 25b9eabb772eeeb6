"""Netdevs and the addresses of this network namespace: /sys/class/net and /proc/net show no other's."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Dict, FrozenSet, Optional, Tuple

from allranks.fabric.tree import MOST_BYTES, Tree


@dataclass(frozen=True)
class Netdev:
    """``speed`` is Gbit/s, None where the driver does not say; ``index`` is the kernel's ifindex."""

    name: str
    index: int
    state: str
    speed: Optional[float]
    vendor: str
    has_default_route: bool

    @property
    def is_up(self) -> bool:
        """Loopback, macvlan and tunnels say ``unknown`` while they work."""
        return self.state in ("up", "unknown")


def read_netdevs(tree: Tree) -> Tuple[Netdev, ...]:
    """In the kernel's order."""
    routes = re.findall(r"^(\S+)\t00000000\t", tree.read("proc/net/route") or "", re.M)
    found = [_netdev(tree, name, name in routes) for name in tree.names("sys/class/net")]
    return tuple(sorted((netdev for netdev in found if netdev), key=lambda netdev: netdev.index))


def _netdev(tree: Tree, name: str, has_default_route: bool) -> Optional[Netdev]:
    folder = f"sys/class/net/{name}"
    state, index = tree.read(f"{folder}/operstate"), tree.read(f"{folder}/ifindex") or ""
    if state is None and not index:
        return None  # bonding_masters and the like are no netdevs
    speed = tree.read(f"{folder}/speed") or ""
    return Netdev(
        name, int(index) if re.fullmatch(r"\d{1,9}", index) else 1 << 30,
        state if state is not None and re.fullmatch(r"[a-z]{1,20}", state) else "unknown",
        int(speed) / 1000 if re.fullmatch(r"[1-9]\d{0,8}", speed) else None,
        tree.read(f"{folder}/device/vendor") or "", has_default_route,
    )  # fmt: skip


def read_addresses(tree: Tree) -> Dict[str, FrozenSet[str]]:
    """This namespace's own addresses, by family (``ipv4``, ``ipv6``); a family whose table is not there is left out."""
    trie, table = tree.read("proc/net/fib_trie"), tree.read("proc/net/if_inet6")
    found: Dict[str, FrozenSet[str]] = {}
    if trie and len(trie) < MOST_BYTES - 1:
        found["ipv4"] = frozenset(re.findall(r"\|-- (\d+(?:\.\d+){3})\n\s+/32 host LOCAL", trie))
    if table:
        digits = re.findall(r"^([0-9a-f]{32}) ", table, re.M)
        found["ipv6"] = frozenset(str(ipaddress.IPv6Address(int(number, 16))) for number in digits)
    return found
