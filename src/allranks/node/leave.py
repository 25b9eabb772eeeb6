"""One node goes and all others must follow, as where an engine makes all pods anew for one that is lost."""

from __future__ import annotations

from typing import Mapping, Set

from allranks.node.rollcall import Member


class Leave:
    """``why`` all must go, empty as long as they need not; ``one_for_all`` says that one that goes is enough."""

    def __init__(self, one_for_all: bool) -> None:
        self._one_for_all, self.why = one_for_all, ""
        self._told: Set[int] = set()

    def follow(self, node: int) -> None:
        """That node goes."""
        if self._one_for_all:
            self.why = f"node {node} leaves, and with it all pods are made anew"

    def tell(self, members: Mapping[int, Member]) -> None:
        """Each once; node 0's own agent when the others are gone: with it goes the coordinator."""
        others = {node for node in members if node}
        for node in (others or set(members)) - self._told:
            members[node].send(type="leave", why=self.why)
            self._told.add(node)
