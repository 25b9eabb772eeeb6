"""A node's RDMA devices and netdevs as the kernel shows them, and which of them can be used from here.

Layout and contents: the kernel's Documentation/ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, List, Optional, Tuple

from allranks.fabric.gid import Gid, parse_gid, parse_version
from allranks.fabric.netdevs import Netdev, read_addresses, read_netdevs
from allranks.fabric.tree import Tree, natural

CLASS = "sys/class/infiniband"
ENOUGH_MEMLOCK = 1 << 30
"""Bytes. NCCL registers its buffers, some hundred MiB; 8 MiB is known to fail (NVIDIA/nccl-tests#206)."""

IPC_LOCK = 1 << 14
AMAZON, GOOGLE = "0x1d0f", "0x1ae0"


@dataclass(frozen=True)
class Port:
    """One port of one device. ``rate`` is Gbit/s, ``pci`` an address such as 0000:3b:00.0, ``order`` verbs' own order.

    ``why`` says why NCCL cannot use it from here, and is empty where it can. ``gids`` holds slot 0 and every slot that
    is not empty, of ``slots``.
    """

    device: str
    port: int
    link_layer: str
    state: str
    rate: Optional[float]
    netdev: Optional[str]
    numa: Optional[int]
    pci: str
    vendor: str
    order: int
    slots: int
    gids: Tuple[Gid, ...]
    opens: bool
    why: str

    @property
    def name(self) -> str:
        return f"{self.device}:{self.port}"

    @property
    def filled(self) -> Tuple[Gid, ...]:
        return tuple(gid for gid in self.gids if gid.number)


@dataclass(frozen=True)
class Host:
    """What was read. ``memlock`` is in bytes, None where unlimited or unknown. ``refused`` is what made no sense.

    ``kind`` is the fabric: InfiniBand, RoCE, EFA, GKE TCPX, GKE TCPXO, GKE gIB, Ethernet or none.
    """

    ports: Tuple[Port, ...]
    netdevs: Tuple[Netdev, ...]
    memlock: Optional[int]
    may_lock: bool
    has_dev: bool
    kind: str
    refused: Tuple[str, ...]

    @property
    def locks_enough(self) -> bool:
        return self.may_lock or self.memlock is None or self.memlock >= ENOUGH_MEMLOCK

    def why_not(self, port: Port) -> str:
        """Why a port cannot be used from here; empty when it can."""
        if port.why or self.locks_enough:
            return port.why
        return f"only {(self.memlock or 0) // 1024} KiB of memory may be locked (ulimit -l)"

    def to_json(self, port: Port) -> Dict[str, Any]:
        why = self.why_not(port)
        return {
            "name": port.device, "port": port.port, "link_layer": port.link_layer, "state": port.state,
            "rate_gbps": port.rate, "netdev": port.netdev, "numa": port.numa, "usable": not why, "why": why,
            "gids": [gid.to_json() for gid in port.filled],
        }  # fmt: skip


def read_host(tree: Tree) -> Host:
    """Read all that tells of the node's network. What is missing or makes no sense is said in the result."""
    netdevs = read_netdevs(tree)
    reader = _Reader(tree, netdevs)
    ports = tuple(port for name in tree.names(CLASS) for port in reader.ports(name))
    memlock, may_lock = _memlock(tree)
    ports = tuple(sorted(ports, key=lambda port: (port.order, natural(port.device), port.port)))
    kind = _kind(tree, ports, netdevs)
    return Host(ports, netdevs, memlock, may_lock, reader.has_dev, kind, (*tree.refused, *reader.nonsense))


class _Reader:
    """Reads devices; ``nonsense`` collects what no kernel writes."""

    def __init__(self, tree: Tree, netdevs: Tuple[Netdev, ...]) -> None:
        self._tree, self._netdevs = tree, frozenset(netdev.name for netdev in netdevs)
        self._addresses = read_addresses(tree)
        self.nonsense: List[str] = []
        self.has_dev = tree.has("dev")
        self._verbs = {
            tree.read(f"sys/class/infiniband_verbs/{name}/ibdev") or "": name
            for name in tree.names("sys/class/infiniband_verbs")
            if re.fullmatch(r"uverbs\d+", name)
        }

    def ports(self, device: str) -> List[Port]:
        numbers = [name for name in self._tree.names(f"{CLASS}/{device}/ports") if re.fullmatch(r"[1-9]\d{0,2}", name)]
        return [self._port(device, int(number)) for number in numbers]

    def _port(self, device: str, number: int) -> Port:
        folder, at = f"{CLASS}/{device}", f"{CLASS}/{device}/ports/{number}"
        link = self._link_layer(at)
        state = self._state(at)
        gids, slots = self._gids(at, link)
        opens, why_closed = self._opens(device)
        return Port(
            device, number, link, state, self._rate(at), self._netdev(folder, gids), self._numa(folder),
            self._pci(folder), self._tree.read(f"{folder}/device/vendor") or "", self._order(device), slots, gids,
            opens, _why(link, state, gids, why_closed),
        )  # fmt: skip

    def _link_layer(self, at: str) -> str:
        text = (self._tree.read(f"{at}/link_layer") or "").split("\n")[0]
        if text not in ("InfiniBand", "Ethernet", "Unknown", "Unspecified", ""):
            self._odd(f"{at}/link_layer", text)
        return text if text in ("InfiniBand", "Ethernet") else "Unknown"

    def _state(self, at: str) -> str:
        text = self._tree.read(f"{at}/state") or ""
        found = re.fullmatch(r"\d+: *([A-Z_]{1,20})", text)
        if not found and text:
            self._odd(f"{at}/state", text)
        return found.group(1) if found else "UNKNOWN"

    def _rate(self, at: str) -> Optional[float]:
        text = self._tree.read(f"{at}/rate") or ""
        found = re.match(r"(\d{1,6}(?:\.\d)?) Gb/sec", text)
        if not found and text:
            self._odd(f"{at}/rate", text)
        return float(found.group(1)) if found else None

    def _numa(self, folder: str) -> Optional[int]:
        text = self._tree.read(f"{folder}/device/numa_node") or ""
        if text and not re.fullmatch(r"-?\d{1,4}", text):
            self._odd(f"{folder}/device/numa_node", text)
            return None
        return int(text) if text and int(text) >= 0 else None

    def _pci(self, folder: str) -> str:
        found = re.search(r"^PCI_SLOT_NAME=([0-9a-f:.]{1,20})$", self._tree.read(f"{folder}/device/uevent") or "", re.M)
        return found.group(1) if found else ""

    def _order(self, device: str) -> int:
        return int(self._verbs[device][len("uverbs") :][:9]) if device in self._verbs else 1 << 30

    def _opens(self, device: str) -> Tuple[bool, str]:
        """Whether verbs can open it; in a pod all HCAs of the host are seen, and only some have their node in /dev."""
        if not self.has_dev:
            return True, ""
        if device not in self._verbs:
            if self._tree.names("sys/class/infiniband_verbs") or not self._tree.has("dev/infiniband"):
                return False, "no /dev/infiniband/uverbs* belongs to it"
            return True, ""
        path = f"dev/infiniband/{self._verbs[device]}"
        if not self._tree.has(path):
            return False, f"/{path} is missing"
        return (True, "") if self._tree.can_open(path) else (False, f"/{path} may not be opened")

    def _netdev(self, folder: str, gids: Tuple[Gid, ...]) -> Optional[str]:
        """The netdev of the own GIDs; else what the device's own are."""
        own = [gid for gid in gids if gid.number and gid.netdev and not gid.foreign]
        best = sorted(own, key=lambda gid: not gid.is_routable)
        below = self._tree.names(f"{folder}/device/net")
        known = [name for name in below if name in self._netdevs] or below
        return best[0].netdev if best else next(iter(known), None)

    def _gids(self, at: str, link: str) -> Tuple[Tuple[Gid, ...], int]:
        indexes = [int(name) for name in self._tree.names(f"{at}/gids") if re.fullmatch(r"\d{1,5}", name)]
        read = (self._gid(at, link, index) for index in sorted(indexes))
        return tuple(gid for gid in read if gid.number or gid.index == 0), max(indexes, default=-1) + 1

    def _gid(self, at: str, link: str, index: int) -> Gid:
        text = self._tree.read(f"{at}/gids/{index}")
        number = parse_gid(text) if text else 0
        if number is None:
            self._odd(f"{at}/gids/{index}", text or "")
        if not number and index:
            return Gid(index, 0)
        version = parse_version(self._tree.read(f"{at}/gid_attrs/types/{index}"), link)
        netdev = self._tree.read(f"{at}/gid_attrs/ndevs/{index}") or None
        gid = Gid(index, number or 0, version, netdev if netdev is None or _sound(netdev) else None)
        foreign = "" if link == "InfiniBand" or not number else self._why_foreign(gid)
        return Gid(index, gid.number, gid.version, gid.netdev, foreign)

    def _why_foreign(self, gid: Gid) -> str:
        if gid.version is None and gid.netdev is None:
            return "its type and netdev cannot be read"
        if gid.netdev is not None and self._netdevs and gid.netdev not in self._netdevs:
            return f"its netdev {gid.netdev} is not here"
        known = self._addresses.get(gid.family)
        if known is not None and gid.address not in known:
            return f"no netdev here has the address {gid.address}"
        return ""

    def _odd(self, path: str, text: str) -> None:
        if len(self.nonsense) < 20:
            self.nonsense.append(f"/{path} holds {text[:40]!r}, which no kernel writes")


def _sound(netdev: str) -> bool:
    return re.fullmatch(r"[!-~]{1,15}", netdev) is not None


def _why(link: str, state: str, gids: Tuple[Gid, ...], why_closed: str) -> str:
    if state != "ACTIVE":
        return f"its port is {state}"
    if why_closed:
        return why_closed
    if link == "Unknown":
        return "its link layer is neither InfiniBand nor Ethernet: NCCL needs a plugin for it"
    if link == "Ethernet" and not any(gid.roce and not gid.foreign for gid in gids if gid.number):
        foreign = any(gid.foreign for gid in gids)
        return "it has no GID of this network namespace" + (", only of another one" if foreign else "")
    return ""


def _memlock(tree: Tree) -> Tuple[Optional[int], bool]:
    found = re.search(r"^Max locked memory +(\d+)", tree.read("proc/self/limits") or "", re.M)
    caps = re.search(r"^CapEff:\s*([0-9a-f]{1,16})$", tree.read("proc/self/status") or "", re.M)
    return int(found.group(1)) if found else None, bool(caps and int(caps.group(1), 16) & IPC_LOCK)


def _kind(tree: Tree, ports: Tuple[Port, ...], netdevs: Tuple[Netdev, ...]) -> str:
    """The fabric, by what is there, not by what works."""
    if any(port.vendor == AMAZON for port in ports):
        return "EFA"
    layers: FrozenSet[str] = frozenset(port.link_layer for port in ports if port.state == "ACTIVE") or frozenset(
        port.link_layer for port in ports
    )
    if "Ethernet" in layers and tree.has("usr/local/gib"):
        return "GKE gIB"
    if "InfiniBand" in layers:
        return "InfiniBand"
    if "Ethernet" in layers:
        return "RoCE"
    # A3 High has four NICs for its GPUs beside eth0, A3 Mega eight; all are gVNICs without RDMA devices.
    google = sum(netdev.vendor == GOOGLE for netdev in netdevs)
    if google >= 5:
        return "GKE TCPXO" if google >= 9 else "GKE TCPX"
    return "Ethernet" if any(netdev.is_up and netdev.name != "lo" for netdev in netdevs) else "none"
