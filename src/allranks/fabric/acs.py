"""PCI bridges that send traffic between a GPU and a NIC through the root complex, by their configuration space."""

from __future__ import annotations

import struct
from typing import List, Optional

from allranks.fabric.tree import Tree

BRIDGE = "0x0604"
EXTENDED, ACS = 0x100, 0x000D
CONTROL = 6
REDIRECTS = 0b11100
"""Request redirect, completion redirect, upstream forwarding (PCI Express base specification, ACS control register)."""


def redirecting_bridges(tree: Tree) -> List[str]:
    """Addresses of bridges with such a bit set. Only root may read that far; then there are none to tell."""
    found = []
    for name in tree.names("sys/bus/pci/devices"):
        at = f"sys/bus/pci/devices/{name}"
        if (tree.read(f"{at}/class") or "").startswith(BRIDGE):
            control = acs_control(tree.read_bytes(f"{at}/config"))
            if control is not None and control & REDIRECTS:
                found.append(name)
    return found


def acs_control(config: bytes) -> Optional[int]:
    """The register's value; None where there is no such capability, or the space ends before it."""
    at = EXTENDED
    for _ in range(64):  # a list that runs in a circle ends too
        if at < EXTENDED or at + 8 > len(config):
            return None
        (head,) = struct.unpack_from("<I", config, at)
        if head & 0xFFFF == ACS:
            (control,) = struct.unpack_from("<H", config, at + CONTROL)
            return int(control)
        at = head >> 20
    return None
