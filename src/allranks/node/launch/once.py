"""``launcher: once``: one process a node, for programs that make their own ranks or need none."""

from __future__ import annotations

from typing import List

from allranks.node.environment import rank_environment
from allranks.node.gang import Gang
from allranks.node.launch.spawn import Spawn, Start


def spawns(gang: Gang, node: int, start: Start) -> List[Spawn]:
    """The node's only process is rank ``node`` of ``nodes``."""
    environment = rank_environment(gang, node, start.attempt, start.address, start.port)
    return [Spawn(gang.argv, environment, gang.log_of(start.attempt, node), rank=node)]
