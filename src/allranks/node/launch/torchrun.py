"""``launcher: torchrun``: one torchrun a node; each rank goes through the shim, so that it is named and watched."""

from __future__ import annotations

from typing import List

from allranks.node.gang import Gang
from allranks.node.launch import shim
from allranks.node.launch.spawn import Spawn, Start


def spawns(gang: Gang, node: int, start: Start) -> List[Spawn]:
    """Static rendezvous, no restarts of its own: the gang's restart is the agent's, with a new torchrun and port.

    So its ranks may share its store: what makes torchrun's own restarts fail is a store that outlives an attempt
    (pytorch/pytorch#135712).
    """
    argv = (
        shim.interpreter_of(gang), "-m", "torch.distributed.run",
        f"--nnodes={gang.nodes}", f"--nproc-per-node={gang.ranks_per_node}", f"--node-rank={node}",
        f"--master-addr={start.address}", f"--master-port={start.port}", "--max-restarts=0",
        "--no-python", *shim.command(gang),
    )  # fmt: skip
    return [Spawn(argv, shim.environment(gang, node, start), gang.launcher_log_of(start.attempt, node))]
