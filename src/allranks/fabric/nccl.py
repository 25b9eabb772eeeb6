"""NCCL's own choice of HCAs and GID indexes, by version: a model, so that nothing need be set where it is right.

Each rule names where NCCL has it; ``net_ib`` is src/transport/net_ib.cc up to 2.28 and src/transport/net_ib/ after.

=========  ===========================================================================================================
2.18.5     MAX_IB_DEVS grows from 16 to 32 (net_ib.cc)
2.21       NCCL_IB_GID_INDEX's default turns from 0 into -1: ncclIbGetGidIndex looks for an index, with
           NCCL_IB_ADDR_FAMILY, NCCL_IB_ADDR_RANGE and NCCL_IB_ROCE_VERSION_NUM; a type that cannot be read is an error
2.22       on InfiniBand an index of its own: NCCL_IB_ROUTABLE_FLID_GID_INDEX if that GID has an FLID, else 0
2.23       NCCL_CONF_FILE (param.cc)
2.26       a type that the kernel refuses with EINVAL is passed over (NVIDIA/nccl#1573, #1538)
2.28       virbr* are the last netdevs to be taken for out-of-band traffic (socket.cc)
2.29.7     devices are put in PCI order unless NCCL_IB_DEVICE_PCI_ORDER=0 (net_ib/init.cc)
2.30.7     an empty port in NCCL_IB_HCA (``mlx5_0:``) means every port; before, none (parseStringList of utils.cc)
=========  ===========================================================================================================
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple, Union

from allranks.fabric.devices import Host, Port
from allranks.fabric.gid import Gid
from allranks.fabric.netdevs import Netdev
from allranks.fabric.settings import Settings
from allranks.fabric.tree import natural
from allranks.fabric.version import NEWEST, Version, parse_version, shown

RELEASES: Tuple[Version, ...] = tuple(
    version
    for version in map(parse_version, (
        "2.18.5", "2.19.4", "2.20.5", "2.21.5", "2.22.3", "2.23.4", "2.24.3", "2.25.1", "2.26.6", "2.27.7", "2.28.9",
        "2.29.7", "2.30.7",
    ))
    if version
)  # fmt: skip
"""The newest release of each series that the model was read from."""

CHOOSES_GIDS: Version = (2, 21)
PASSES_OVER_EINVAL: Version = (2, 26, 2)
Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]


@dataclass(frozen=True)
class Chosen:
    """A port that NCCL takes, and the index it uses there; ``error`` is why NCCL ends with an error instead."""

    port: Port
    gid_index: int
    error: str = ""


@dataclass(frozen=True)
class Choice:
    """What NCCL of one version does by itself. With no ports it falls back to TCP, unless NCCL_NET forbids that."""

    version: Version
    chosen: Tuple[Chosen, ...]
    why: str

    def to_json(self) -> Dict[str, Any]:
        devices = [
            {"name": one.port.device, "port": one.port.port, "gid_index": one.gid_index if not one.error else None}
            for one in self.chosen
        ]
        return {"version": shown(self.version), "devices": devices, "why": self.why}


def choose(host: Host, version: Version, settings: Settings) -> Choice:
    """What NCCL takes, with these settings, on this node."""
    if settings.number("NCCL_IB_DISABLE", 0):
        return Choice(version, (), "NCCL_IB_DISABLE forbids RDMA: TCP")
    net = settings.get("NCCL_NET")
    if net is not None and net.lower() != "ib":
        return Choice(version, (), f"NCCL_NET={net} forces that network")
    if settings.get("NCCL_SOCKET_IFNAME") and not socket_netdevs(host, version, settings):
        return Choice(version, (), f"no netdev is NCCL_SOCKET_IFNAME={settings.get('NCCL_SOCKET_IFNAME')}: no RDMA")
    opened = [port for port in host.ports if port.opens and port.state == "ACTIVE" and port.link_layer != "Unknown"]
    hcas = HcaList(settings.get("NCCL_IB_HCA") or "", version)
    taken = [port for port in opened if hcas.takes(port)][: 16 if version < (2, 18, 5) else 32]
    if version >= (2, 29, 7) and settings.number("NCCL_IB_DEVICE_PCI_ORDER", 1):
        taken.sort(key=lambda port: (not port.pci, port.pci))
    chosen = tuple(_with_gid(port, version, settings) for port in taken)
    return Choice(version, chosen, _why(host, version, settings, chosen, bool(opened)))


def _why(host: Host, version: Version, settings: Settings, chosen: Tuple[Chosen, ...], opened: bool) -> str:
    if not chosen:
        forced = settings.get("NCCL_NET") is not None
        none = "no device matches NCCL_IB_HCA" if opened else "no active RDMA port can be opened"
        return none + (": NCCL_NET=IB makes NCCL fail" if forced else ": TCP, without a word")
    for one in chosen:
        if one.error:
            return f"{one.port.name}: {one.error}"
    if all(one.port.link_layer == "InfiniBand" for one in chosen):
        return "InfiniBand needs no index"
    if settings.number("NCCL_IB_GID_INDEX", -1 if version >= CHOOSES_GIDS else 0) >= 0:
        given = settings.get("NCCL_IB_GID_INDEX")
        return f"NCCL_IB_GID_INDEX={given}, on every device" if given else "its default: index 0, on every device"
    family = "IPv6" if wanted_family(settings) == "ipv6" else "IPv4"
    allowed = settings.get("NCCL_IB_ADDR_RANGE")
    return f"the first {family} RoCE v{settings.number('NCCL_IB_ROCE_VERSION_NUM', 2)} address of each port" + (
        f" in {allowed}" if allowed else ""
    )


class HcaList:
    """NCCL_IB_HCA: ``[^][=]name[:port][,...]``. Without ``=`` a name is a prefix: mlx5_1 also means mlx5_10.

    parseStringList and matchIfList of src/misc/utils.cc; the marks count at the very beginning only, once each.
    """

    def __init__(self, text: str, version: Version = NEWEST) -> None:
        self.is_exclusion = text.startswith("^")
        text = text[1:] if self.is_exclusion else text
        self.is_exact = text.startswith("=")
        text = text[1:] if self.is_exact else text
        self.entries: List[Tuple[str, int]] = []
        for entry in text.split(","):
            name, colon, port = entry.partition(":")
            every = not port.partition(":")[0] if version >= (2, 30, 7) else not colon
            if name and len(self.entries) < 32:
                self.entries.append((name, -1 if every else _atoi(port)))

    def takes(self, port: Port) -> bool:
        """An empty list takes every device."""
        return self.lists(port) != self.is_exclusion

    def lists(self, port: Port) -> bool:
        return not self.entries or any(
            self._means(name, port.device) and number in (-1, port.port) for name, number in self.entries
        )

    def _means(self, name: str, device: str) -> bool:
        return device == name if self.is_exact else device.startswith(name)


def _atoi(text: str) -> int:
    digits = text.lstrip()
    length = next((at for at, letter in enumerate(digits) if letter not in "0123456789"), len(digits))
    return int(digits[:length][:9] or 0)


def _with_gid(port: Port, version: Version, settings: Settings) -> Chosen:
    """By ncclIbGetGidIndex of net_ib (connect.cc): an index that is set is used as it is, on every RoCE port."""
    if port.link_layer == "InfiniBand":
        return Chosen(port, _flid_index(port, version, settings))
    given = settings.number("NCCL_IB_GID_INDEX", -1 if version >= CHOOSES_GIDS else 0)
    if given >= 0:
        return Chosen(port, given)
    if version < CHOOSES_GIDS:
        return Chosen(port, given, f"NCCL_IB_GID_INDEX={given} is no index before NCCL 2.21")
    return _search(port, version, settings)


def _flid_index(port: Port, version: Version, settings: Settings) -> int:
    index = settings.number("NCCL_IB_ROUTABLE_FLID_GID_INDEX", 1)
    if version < (2, 22) or not 0 <= index < port.slots:
        return 0
    return index if any(gid.index == index and gid.number >> 80 & 0xFFFF for gid in port.gids) else 0


def _search(port: Port, version: Version, settings: Settings) -> Chosen:
    """By ncclUpdateGidIndex, for every slot from 1 on."""
    wanted, allowed = wanted_family(settings), wanted_range(settings)
    roce = settings.number("NCCL_IB_ROCE_VERSION_NUM", 2)
    filled = {gid.index: gid for gid in port.gids}
    current = filled.pop(0, Gid(0, 0))
    # NCCL tells two families only: what is no mapped IPv4 address is AF_INET6, an empty slot too.
    slots = range(1, port.slots) if wanted == "ipv6" else sorted(filled)
    for index in slots:
        gid = filled.get(index, Gid(index, 0))
        if _family(gid) != wanted or not in_range(gid, allowed):
            continue
        if _family(current) != wanted:
            current = gid
            continue
        if not gid.is_routable:
            continue
        unreadable = [one.index for one in (current, gid) if not one.roce]
        if unreadable and version < PASSES_OVER_EINVAL:
            return Chosen(port, current.index, f"the type of GID {unreadable[0]} cannot be read, an error before 2.26")
        # 2.26 compares with an unset number where the current one's type cannot be read: it differs.
        if gid.roce and gid.roce == roce and (current.roce != gid.roce or not current.is_routable):
            current = gid
    return Chosen(port, current.index)


def _family(gid: Gid) -> str:
    return "ipv4" if gid.is_ipv4 else "ipv6"


def wanted_family(settings: Settings) -> str:
    """envIbAddrFamily: AF_INET unless it is exactly AF_INET6."""
    return "ipv6" if settings.get("NCCL_IB_ADDR_FAMILY") == "AF_INET6" else "ipv4"


def wanted_range(settings: Settings) -> Optional[Network]:
    """envIbAddrRange: ``address/bits``; what is no such thing, or of the other family, is ignored, and so is /0."""
    address, slash, bits = (settings.get("NCCL_IB_ADDR_RANGE") or "").partition("/")
    length, family = _atoi(bits), wanted_family(settings)
    if not slash or not 0 < length <= (32 if family == "ipv4" else 128):
        return None
    try:
        if family == "ipv4":
            return ipaddress.IPv4Network((address, length), strict=False)
        return ipaddress.IPv6Network((address, length), strict=False)
    except ValueError:
        return None


def in_range(gid: Gid, allowed: Optional[Network]) -> bool:
    """matchGidAddrPrefix; for IPv4 it looks at the last 32 bits alone."""
    if allowed is None:
        return True
    if allowed.version == 4:
        return ipaddress.IPv4Address(gid.number & 0xFFFFFFFF) in allowed
    return ipaddress.IPv6Address(gid.number) in allowed


def socket_netdevs(host: Host, version: Version, settings: Settings) -> Tuple[str, ...]:
    """The netdevs NCCL takes for out-of-band traffic, and for data without RDMA: ncclFindInterfaces of socket.cc.

    Which of them have an address, and NCCL_COMM_ID's subnet, are left out of the model.
    """
    up = [netdev for netdev in host.netdevs if netdev.is_up]
    given = settings.get("NCCL_SOCKET_IFNAME")
    if given is not None and len(given) > 1:
        return _named(up, given)
    rest = ("docker", "lo") + (("virbr",) if version >= (2, 28) else ())
    for names in ("ib", "^" + ",".join(rest), *rest):
        found = _named(up, names)
        if found:
            return found
    return ()


def _named(netdevs: List[Netdev], names: str) -> Tuple[str, ...]:
    is_exclusion = names.startswith("^")
    names = names[1:] if is_exclusion else names
    is_exact = names.startswith("=")
    listed = [name.partition(":")[0] for name in names[is_exact:].split(",") if name]
    found = [
        netdev.name
        for netdev in netdevs
        if any(netdev.name == name if is_exact else netdev.name.startswith(name) for name in listed) != is_exclusion
    ]
    return tuple(found[:16])


def by_name(port: Port) -> Tuple[List[object], int]:
    """A key for lists that people read."""
    return natural(port.device), port.port
