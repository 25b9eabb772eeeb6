"""Which way NCCL took, read from its own lines (NCCL_DEBUG=INFO, src/transport/*.cc and src/init.cc of NCCL).

::

    NCCL INFO Using network IB
    NCCL INFO ncclCommInitRank comm 0x55 rank 0 nranks 16 cudaDev 0 ... - Init START
    NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0(1)/GDRDMA
    NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional, Set

TCP = frozenset(["Socket", "FastSocket"])
"""Networks of NCCL's and of plugins that are plain TCP."""

MARK = "NCCL INFO "
NETWORK = re.compile(r"(?:Using network|Assigned NET plugin) (\S[\w ]{0,40}?)(?: to comm.*)?$")
SIZE = re.compile(r"\bcomm 0x[0-9a-f]+ rank \d+ nranks (\d{1,7})\b")
CHANNEL = re.compile(
    r"Channel \S+(?: *:)? (\d{1,7})\[[0-9a-f]+\] -> (\d{1,7})\[[0-9a-f]+\](?: \[(send|receive)\])? via (\S.*)"
)
NET = re.compile(r"NET/([^/]+)/\d+(?:\(\d+\))?(/GDRDMA)?")


@dataclass(frozen=True)
class Link:
    """From one rank to another: ``network`` is IB, Socket or a plugin's name, or P2P, SHM within a node.

    Ranks are the gang's; ``other`` is None where the communicator was not of all ranks.
    """

    rank: int
    other: Optional[int]
    network: str
    gpudirect: bool = False


class Lines:
    """One process's lines, fed one by one."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks
        self._size = 0
        self.networks: Set[str] = set()
        self.links: Set[Link] = set()

    def feed(self, line: str) -> None:
        """Take down what a line tells; most tell nothing."""
        if MARK not in line:
            return
        text = line.partition(MARK)[2].rstrip()
        size, channel, network = SIZE.search(text), CHANNEL.match(text), NETWORK.match(text)
        if size:
            self._size = int(size.group(1))
        elif channel:
            self._link(*channel.groups())
        elif network:
            self.networks.add(network.group(1))

    def _link(self, source: str, target: str, way: Optional[str], via: str) -> None:
        """Of both ends of a channel each process prints its own; without a way the sender does."""
        found = NET.match(via)
        network, gpudirect = (found.group(1), bool(found.group(2))) if found else (via.split("/")[0], False)
        other = int(source) if way == "receive" else int(target)
        whole = self._size == self._ranks and 0 <= other < self._ranks
        self.links.add(Link(self._rank, other if whole else None, network, gpudirect))
