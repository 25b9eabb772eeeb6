"""Which ports and GIDs are right for training between nodes, and how NCCL's variables name them."""

from __future__ import annotations

import ipaddress
from typing import Callable, Dict, FrozenSet, Iterator, List, Tuple

from allranks.fabric.devices import Host, Port
from allranks.fabric.gid import Gid
from allranks.fabric.nccl import by_name

FAMILY, RANGE, HCA, INDEX = "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX"


def right_gids(port: Port) -> Tuple[Gid, ...]:
    """The GIDs that reach other nodes: own and routable before link-local, RoCE v2 before v1."""
    own = [gid for gid in port.filled if not gid.foreign and gid.roce]
    for is_routable in (True, False):
        for roce in (2, 1):
            found = tuple(gid for gid in own if gid.is_routable == is_routable and gid.roce == roce)
            if found:
                return found
    return ()


def right_indexes(port: Port) -> FrozenSet[int]:
    """Of InfiniBand NCCL's own index is right, whatever it is."""
    if port.link_layer == "InfiniBand":
        return frozenset(range(2))
    return frozenset(gid.index for gid in right_gids(port))


def best_ports(usable: List[Port]) -> Tuple[Tuple[Port, ...], List[Tuple[Port, str]]]:
    """The ports for training among those that work, and why each of the others is not.

    One link layer, because NCCL cannot connect one with another (net_ib: "Attempted to merge incompatible devices"):
    the faster in sum. And none that has less than half the rate of the fastest: those are for storage or management.
    """
    rates: Dict[str, float] = {}
    for port in usable:
        rates[port.link_layer] = rates.get(port.link_layer, 0) + (port.rate or 1)
    layer = max(rates, key=lambda name: rates[name], default="")
    fastest = max((port.rate or 0 for port in usable if port.link_layer == layer), default=0)
    best, out = [], []
    for port in usable:
        if port.link_layer != layer:
            out.append((port, f"it is {port.link_layer}, the faster others are {layer}: not for NCCL"))
        elif port.rate is not None and port.rate * 2 < fastest:
            out.append(
                (port, f"its {port.rate:g} Gbit/s are less than half of the fastest's {fastest:g}: not for NCCL")
            )
        else:
            best.append(port)
    return tuple(best), out


def exactly(ports: Tuple[Port, ...], host: Host) -> str:
    """NCCL_IB_HCA for these ports; the port number only where a device has another that is not meant."""
    entries: List[str] = []
    for port in sorted(ports, key=by_name):
        siblings = [other for other in host.ports if other.device == port.device and other.state == "ACTIVE"]
        entries.append(port.device if set(siblings) <= set(ports) else port.name)
    return "=" + ",".join(dict.fromkeys(entries))


def ranges(ports: Tuple[Port, ...]) -> Iterator[Dict[str, str]]:
    """The narrowest range that holds a right GID of every port, for either family."""
    for is_ipv4, family in ((True, {}), (False, {FAMILY: "AF_INET6"})):  # type: bool, Dict[str, str]
        found = [[gid for gid in right_gids(port) if gid.is_ipv4 == is_ipv4] for port in ports]
        if all(found):
            yield {**family, RANGE: _narrowest([gids[0] for gids in found])}


def _narrowest(gids: List[Gid]) -> str:
    """The smallest CIDR range that holds all these addresses; /1 at least, because NCCL ignores /0."""
    width = 32 if gids[0].is_ipv4 else 128
    numbers = [gid.number & (1 << width) - 1 for gid in gids]
    differing = 0
    for number in numbers:
        differing |= number ^ numbers[0]
    bits = max(1, width - differing.bit_length())
    first = numbers[0] >> (width - bits) << (width - bits)
    address = ipaddress.IPv4Address(first) if width == 32 else ipaddress.IPv6Address(first)
    return f"{address}/{bits}"


def common_indexes(ports: Tuple[Port, ...]) -> FrozenSet[int]:
    """Indexes that are right on every port."""
    found = [right_indexes(port) for port in ports if port.link_layer == "Ethernet"]
    return frozenset.intersection(*found) if found else frozenset()


def having(ports: Tuple[Port, ...], test: Callable[[Gid], bool]) -> Tuple[Port, ...]:
    """The ports that have such a GID among the right ones."""
    return tuple(port for port in ports if any(test(gid) for gid in right_gids(port)))
