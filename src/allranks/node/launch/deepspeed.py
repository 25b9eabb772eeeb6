"""``launcher: deepspeed``: DeepSpeed's launcher once a node, without ssh; each rank goes through the shim."""

from __future__ import annotations

import base64
import json
from typing import List

from allranks.node.gang import Gang
from allranks.node.launch import shim
from allranks.node.launch.spawn import Spawn, Start


def spawns(gang: Gang, node: int, start: Start) -> List[Spawn]:
    """The per-node half of ``deepspeed --no_ssh``: the other half only reads a hostfile to build this very line.

    Naming the nodes here needs no hostfile, and does not count the GPUs of this host (there may be none).
    """
    world = {gang.name_of(n): list(range(gang.ranks_per_node)) for n in range(gang.nodes)}
    encoded = base64.urlsafe_b64encode(json.dumps(world).encode()).decode()
    argv = (
        shim.interpreter_of(gang), "-u", "-m", "deepspeed.launcher.launch",
        f"--world_info={encoded}", f"--node_rank={node}",
        f"--master_addr={start.address}", f"--master_port={start.port}",
        "--no_python", "--no_local_rank", *shim.command(gang),
    )  # fmt: skip
    return [Spawn(argv, shim.environment(gang, node, start), gang.launcher_log_of(start.attempt, node))]
