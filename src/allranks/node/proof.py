"""What the network really did, by NCCL's own lines and the NICs' counters.

``Prover`` is each agent's part, ``Proof`` the coordinator's.
"""

from __future__ import annotations

import asyncio
import glob
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Set, Tuple

from allranks.fabric.transport import TCP, Lines
from allranks.node.gang import Gang

if TYPE_CHECKING:
    from allranks.fabric.counters import Counters

INTERVAL = 1.0
PIECE, MOST = 4 << 20, 64 << 20
"""Bytes of one file that are read at a look, and in all: NCCL says it at the beginning."""

MOST_WAYS = 1000
"""In one message, which has at most 64 KiB."""

WORTH = 64 << 20
"""Bytes by which a node's traffic must have grown to be told again."""

Way = Tuple[Optional[int], str, bool]
"""Of a node: the other node (None: not known), the network, GPUDirect."""


class Prover:
    """Looks every second while something is new. ``alive`` gives this node's ranks and their process ids."""

    def __init__(
        self, gang: Gang, node: int, tell: Callable[..., None], alive: Callable[[], Mapping[int, int]]
    ) -> None:
        self._gang, self._node, self._tell, self._alive = gang, node, tell, alive
        self._attempt = -1

    def open(self) -> None:
        if self._gang.rdma:
            self._looking = asyncio.ensure_future(self._keep_looking())

    def begin(self, attempt: int) -> None:
        """Nothing of an earlier attempt counts."""
        if not self._gang.rdma:
            return
        self._attempt, self._ending = attempt, False
        self._lines: Dict[str, Lines] = {}
        self._read: Dict[str, int] = {}
        self._told: Tuple[Set[Way], Set[str], int] = (set(), set(), -WORTH)
        self._start = self._counters()
        try:
            os.makedirs(self._gang.nccl_folder(attempt, self._node), exist_ok=True)
        except OSError:
            pass  # NCCL then says it to standard output, as if we had not asked for a file

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            if self._attempt >= 0 and self._alive():
                self.look()

    def look_at_the_end(self) -> None:
        """When the first rank ends: a short attempt may be over before the first look."""
        if self._attempt >= 0 and not self._ending:
            self._ending = True
            self.look()

    def look(self) -> None:
        """Read what is new, and tell it if it tells anything."""
        for path, rank in self._files():
            self._read_on(path, rank)
        ways = {self._way(link) for lines in self._lines.values() for link in lines.links}
        ways = {way for way in ways if way[0] != self._node}
        networks = {name for lines in self._lines.values() for name in lines.networks}
        traffic = self._counters().since(self._start).total
        moved = sum(traffic.values()) - self._told[2]
        if (ways, networks) != self._told[:2] or moved >= WORTH:
            self._told = (ways, networks, sum(traffic.values()))
            some = [list(way) for way in list(ways)[:MOST_WAYS]]
            names = sorted(networks)
            self._tell(type="proof", attempt=self._attempt, ways=some, networks=names, traffic=traffic)

    def _counters(self) -> Counters:
        from allranks.fabric.counters import read_counters  # agents of this machine start without it
        from allranks.fabric.tree import open_tree

        return read_counters(open_tree(self._gang.fabric_root_of(self._node)))

    def _files(self) -> List[Tuple[str, int]]:
        """NCCL's own files, else the logs of this node's ranks, where a user's NCCL_DEBUG puts the same lines."""
        gang = self._gang
        ours = gang.ranks_of(self._node)
        if not gang.nccl_lines:
            return [(gang.log_of(self._attempt, rank), rank) for rank in ours]
        by_pid = {str(pid): rank for rank, pid in self._alive().items()}
        names = glob.glob(os.path.join(glob.escape(gang.nccl_folder(self._attempt, self._node)), "*"))
        return [(name, by_pid.get(os.path.basename(name), ours[0])) for name in names]

    def _read_on(self, path: str, rank: int) -> None:
        """From where the last look ended, whole lines only."""
        begin = self._read.get(path, 0)
        if begin >= MOST:
            return
        try:
            with open(path, "rb") as file:
                file.seek(begin)
                piece = file.read(PIECE)
        except OSError:
            return
        whole = piece[: piece.rfind(b"\n") + 1] or (piece if len(piece) == PIECE else b"")
        self._read[path] = begin + len(whole)
        lines = self._lines.setdefault(path, Lines(rank, self._gang.world_size))
        for line in whole.decode("utf-8", "replace").splitlines():
            lines.feed(line)

    def _way(self, link: Any) -> Way:
        """P2P and SHM stay within the node; of any other way a communicator of some ranks does not say to whom."""
        other = None if link.other is None else self._gang.node_of(link.other)
        if other is None and link.network in ("P2P", "SHM"):
            other = self._node
        return other, link.network, link.gpudirect


class Proof:
    """What all nodes told of an attempt."""

    def __init__(self, gang: Gang) -> None:
        self._gang = gang
        self.begin(-1)

    def begin(self, attempt: int) -> None:
        """Nothing of an earlier attempt counts."""
        self._attempt = attempt
        self._ways: Dict[int, List[Way]] = {}
        self._networks: Dict[int, List[str]] = {}
        self._traffic: Dict[int, Dict[str, int]] = {}

    def heard(self, node: int, message: Mapping[str, Any]) -> str:
        """Take down a node's message. Returns why the attempt may not go on, or the empty string.

        Raises KeyError, TypeError or ValueError for a message that is malformed.
        """
        if message["attempt"] != self._attempt:
            return ""
        self._ways[node] = [
            (None if other is None else int(other), str(network)[:40], bool(gpudirect))
            for other, network, gpudirect in message["ways"][: 4 * self._gang.nodes]
        ]
        self._networks[node] = [str(name)[:40] for name in message["networks"][:8]]
        self._traffic[node] = {kind: int(message["traffic"][kind]) for kind in ("rdma", "tcp")}
        return self._why_not(node) if self._gang.rdma == "required" else ""

    def _why_not(self, node: int) -> str:
        """RDMA is required, and NCCL's own lines of this node say TCP."""
        for other, network, _ in self._ways[node]:
            if network in TCP:
                to = "" if other is None else f" to node {other}"
                return f"network.rdma is required, but NCCL goes by TCP{to} (NET/{network})"
        said = sorted(TCP.intersection(self._networks[node]))
        if said and self._gang.nodes > 1:
            return f"network.rdma is required, but NCCL has chosen TCP (Using network {said[0]})"
        return ""

    @property
    def links(self) -> List[Dict[str, Any]]:
        """Each pair of nodes, and how it is connected: ``nodes``, ``network``, ``gpudirect``."""
        found = {
            (min(node, other), max(node, other), network, gpudirect)
            for node, ways in self._ways.items() for other, network, gpudirect in ways if other is not None
        }  # fmt: skip
        return [{"nodes": [a, b], "network": network, "gpudirect": gdr} for a, b, network, gdr in sorted(found)]

    @property
    def traffic(self) -> List[Dict[str, int]]:
        """Bytes of each node through RDMA ports and netdevs since the attempt began."""
        return [{"node": node, **counted} for node, counted in sorted(self._traffic.items())]

    @property
    def summary(self) -> str:
        """One line: ``nccl/IB with GPUDirect``; every way, if there are several."""
        ways = {(network, gdr) for found in self._ways.values() for _, network, gdr in found}
        if not ways:
            return ", ".join(f"nccl/{name}" for name in sorted({n for names in self._networks.values() for n in names}))
        return " and ".join(f"nccl/{network}{' with GPUDirect' if gdr else ''}" for network, gdr in sorted(ways))
