"""Who is here: one holder for each node number, kept by heartbeats.

A node can have two living agents (its pod was replaced while the network was cut, then the cut healed): the
incarnation that heartbeats keeps the number and the other is told to wait. A node that went silent may still have
living ranks, so nothing starts in its place before its own lease has ended there too; the same incarnation saying
that its ranks are gone lifts that wait.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

FENCE_MARGIN = 1.0
CLOSED_FENCE = 0.3


@dataclass
class Member:
    """One agent that dialled in. ``heard`` is by the coordinator's monotonic clock, ``clock_offset`` in seconds."""

    node: int
    incarnation: str
    host: str
    address: str
    send: Callable[..., bool]
    close: Callable[[], None]
    heard: float = 0.0
    ready: bool = False
    idle: bool = True
    waiting_for: str = ""
    clock_offset: float = 0.0


class Refused(Exception):
    """The agent does not belong here and never will; the message says why."""


class RollCall:
    """The members of one gang, by node number."""

    def __init__(self, nodes: int, lease: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.nodes, self.lease, self._clock = nodes, lease, clock
        self.members: Dict[int, Member] = {}
        self._fences: Dict[int, Tuple[str, float]] = {}

    @property
    def complete(self) -> bool:
        """All nodes are here, could import what they need, hold no rank, and no lost one may still hold any."""
        now = self._clock()
        everyone = len(self.members) == self.nodes and all(m.ready and m.idle for m in self.members.values())
        return everyone and all(until <= now for _, until in self._fences.values())

    @property
    def missing(self) -> List[int]:
        return [node for node in range(self.nodes) if node not in self.members]

    def holder(self, node: int, incarnation: str) -> Optional[Member]:
        """The living member that keeps ``node`` from this incarnation, or None when it may join."""
        held = self.members.get(node)
        return held if held and held.incarnation != incarnation else None

    def join(self, member: Member) -> Optional[Member]:
        """Seat a member; returns the same agent's older connection, if there was one, for the caller to close."""
        older = self.members.get(member.node)
        if self._fences.get(member.node, ("",))[0] == member.incarnation:
            del self._fences[member.node]
        member.heard = self._clock()
        self.members[member.node] = member
        return older

    def lose(self, member: Member, silent: bool) -> bool:
        """Unseat a member; False when its seat had gone to a newer connection."""
        if self.members.get(member.node) is not member:
            return False
        del self.members[member.node]
        end = member.heard + self.lease + FENCE_MARGIN if silent else self._clock() + CLOSED_FENCE
        self._fences[member.node] = (member.incarnation, end)
        return True

    def lift_fences(self) -> None:
        """Forget lost holders: everyone is here, and their leases have ended."""
        self._fences.clear()

    def silent(self) -> List[Member]:
        now = self._clock()
        return [member for member in self.members.values() if now - member.heard > self.lease]

    def who_is_awaited(self) -> str:
        """One line for people: who is missing, or what those present still wait for."""
        if self.missing:
            some = ", ".join(map(str, self.missing[:8])) + (", ..." if len(self.missing) > 8 else "")
            noun = "node" if len(self.missing) == 1 else "nodes"
            return f"roll call: {len(self.members)} of {self.nodes} nodes here, waiting for {noun} {some}"
        for member in self.members.values():
            if not member.ready:
                return f"node {member.node}: {member.waiting_for or 'getting ready'}"
            if not member.idle:
                return f"node {member.node}: waiting for its old ranks to end"
        return "roll call: all here"


def check_hello(hello: Mapping[str, Any], expected: Mapping[str, Any]) -> Tuple[int, str]:
    """Node number and incarnation of a hello. Raises Refused, naming each thing that differs."""
    differing = [
        f"{key} is {hello.get(key)!r:.60}, here {value!r:.60}"
        for key, value in expected.items()
        if hello.get(key) != value
    ]
    if differing:
        raise Refused("another gang or another version: " + "; ".join(differing))
    node, incarnation = hello.get("node"), hello.get("incarnation")
    if type(node) is not int or not 0 <= node < expected["nodes"]:
        raise Refused(f"node {node!r:.20} is not in 0..{expected['nodes'] - 1}")
    if not isinstance(incarnation, str) or not 0 < len(incarnation) <= 64:
        raise Refused("the hello has no incarnation")
    return node, incarnation
