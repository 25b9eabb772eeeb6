"""What a PyTorchJob's pods see; RANK counts pods there, WORLD_SIZE processes. Seen on training-operator 1.9.3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from allranks.engines.kubernetes.pretend import NATIVE_AND_TORCH, pod

if TYPE_CHECKING:
    from allranks.node.pod import Pod
    from allranks.spec.job import Job

LAUNCHERS = NATIVE_AND_TORCH


def pods(job: Job, addresses: Sequence[str]) -> list[Pod]:
    """One pod for each address, the master being node 0's. Each is found under a service of its own name."""
    names = [f"{job.name}-master-0", *(f"{job.name}-worker-{node}" for node in range(len(addresses) - 1))]
    return [
        pod(job, address, name, "", _variables(job, node))
        for node, (address, name) in enumerate(zip(addresses, names, strict=True))
    ]


def _variables(job: Job, node: int) -> dict[str, str]:
    master = f"{job.name}-master-0"
    return {
        "PYTHONUNBUFFERED": "1", "MASTER_ADDR": master, "PET_MASTER_ADDR": master,
        "MASTER_PORT": "23456", "PET_MASTER_PORT": "23456", "RANK": str(node), "WORLD_SIZE": str(job.world_size),
        "PET_NODE_RANK": str(node), "PET_NNODES": str(job.nodes), "PET_NPROC_PER_NODE": str(job.ranks),
    }  # fmt: skip
