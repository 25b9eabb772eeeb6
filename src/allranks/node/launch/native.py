"""``launcher: native``: the zygote forks every rank, or starts it afresh where a fork would not be faithful."""

from __future__ import annotations

import os
from typing import List

from allranks.node.environment import rank_environment
from allranks.node.fork import pycommand
from allranks.node.gang import Gang
from allranks.node.launch.spawn import Spawn, Start


def spawns(gang: Gang, node: int, start: Start) -> List[Spawn]:
    """One process a rank. The node's first rank lists its imports for the next zygote."""
    ours = gang.ranks_of(node)
    command = pycommand.parse(gang.argv, gang.workdir)
    return [
        Spawn(
            argv=gang.argv,
            environment=rank_environment(gang, rank, start.attempt, start.address, start.port),
            log=gang.log_of(start.attempt, rank),
            rank=rank,
            fork=command.forkable,
            learn=learned_path(gang, node) if rank == ours[0] and command.forkable else "",
        )
        for rank in ours
    ]


def learned_path(gang: Gang, node: int) -> str:
    """Where this node's first rank writes the names of the modules it imports."""
    return os.path.join(gang.state, f"imports-{node}.txt")
