"""One slot of a port's GID table, and what NCCL sees in it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Any, Dict, Optional

GROUPS = re.compile(r"[0-9a-fA-F]{4}(:[0-9a-fA-F]{4}){7}")


@dataclass(frozen=True)
class Gid:
    """``number`` is the GID's 128 bits. ``version`` is RoCE v1, RoCE v2, IB, or None where it cannot be read.

    ``foreign`` says why the slot belongs to another network namespace; it is empty for one's own.
    """

    index: int
    number: int
    version: Optional[str] = None
    netdev: Optional[str] = None
    foreign: str = ""

    @property
    def text(self) -> str:
        digits = f"{self.number:032x}"
        return ":".join(digits[at : at + 4] for at in range(0, 32, 4))

    @property
    def is_ipv4(self) -> bool:
        """As NCCL's getGidAddrFamily: ::ffff:a.b.c.d, or the multicast form of it."""
        return self.number >> 32 in (0xFFFF, 0xFF0E << 80 | 0xFFFF)

    @property
    def is_link_local(self) -> bool:
        """fe80::/64, as NCCL's linkLocalGid."""
        return self.number >> 64 == 0xFE80 << 48

    @property
    def is_routable(self) -> bool:
        """What NCCL's validGid accepts: neither empty nor link-local."""
        return self.number != 0 and not self.is_link_local

    @property
    def roce(self) -> int:
        """The RoCE version, 1 or 2; 0 where it is none or unreadable."""
        return {"RoCE v1": 1, "RoCE v2": 2}.get(self.version or "", 0)

    @property
    def family(self) -> str:
        if self.version == "IB":
            return "ib"
        if self.is_ipv4:
            return "ipv4"
        return "link-local" if self.is_link_local else "ipv6"

    @property
    def address(self) -> str:
        """As people write it."""
        if self.is_ipv4:
            return str(ipaddress.IPv4Address(self.number & 0xFFFFFFFF))
        return str(ipaddress.IPv6Address(self.number))

    def to_json(self) -> Dict[str, Any]:
        return {
            "index": self.index, "gid": self.text, "version": self.version, "family": self.family,
            "netdev": self.netdev,
        }  # fmt: skip


def parse_gid(text: str) -> Optional[int]:
    """The 128 bits of what ports/N/gids/I holds; None when it is no GID."""
    return int(text.replace(":", ""), 16) if GROUPS.fullmatch(text) else None


def parse_version(text: Optional[str], link_layer: str) -> Optional[str]:
    """What gid_attrs/types/I says; NCCL takes a plain ``RoCE v1`` too (ncclIbRoceGetVersionNum)."""
    if not text:
        return None
    if link_layer == "InfiniBand":
        return "IB"
    if text.startswith(("IB/RoCE v1", "RoCE v1")):
        return "RoCE v1"
    return "RoCE v2" if text.startswith("RoCE v2") else None
