"""What a TrainJob's pods see under the torch policy, and under the mpi policy for ``launcher: mpirun``.

Seen on Trainer 2.2.0. The hostfile follows the runtime's order of Jobs: node pods first, the launcher last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from allranks.engines.kubernetes.pretend import NATIVE_AND_TORCH, open_mpi, pod

if TYPE_CHECKING:
    from allranks.node.pod import Pod
    from allranks.spec.job import Job

LAUNCHERS = (*NATIVE_AND_TORCH, "mpirun")


def pods(job: Job, addresses: Sequence[str]) -> list[Pod]:
    """One pod for each address, the first being node 0's."""
    if job.launcher == "mpirun":
        return _under_mpi(job, addresses)
    return [_under_torch(job, node, address, len(addresses)) for node, address in enumerate(addresses)]


def _under_torch(job: Job, node: int, address: str, nodes: int) -> Pod:
    env = {
        "PET_NNODES": str(nodes), "PET_NPROC_PER_NODE": str(job.ranks), "PET_NODE_RANK": str(node),
        "PET_MASTER_ADDR": f"{job.name}-node-0-0.{job.name}", "PET_MASTER_PORT": "29500",
        "JOB_COMPLETION_INDEX": str(node),
    }  # fmt: skip
    return pod(job, address, f"{job.name}-node-0-{node}", job.name, env)


def _under_mpi(job: Job, addresses: Sequence[str]) -> list[Pod]:
    launcher, nodes = f"{job.name}-launcher-0-0", [f"{job.name}-node-0-{n}" for n in range(len(addresses) - 1)]
    hostfile = "".join(f"{name}.{job.name} slots={job.ranks}\n" for name in [*nodes, launcher])
    first = pod(
        job, addresses[0], launcher, job.name, {"JOB_COMPLETION_INDEX": "0", **open_mpi(job.ranks)},
        {"/etc/mpi/hostfile": hostfile},
    )  # fmt: skip
    others = enumerate(zip(addresses[1:], nodes, strict=True))
    return [first, *(pod(job, at, name, job.name, {"JOB_COMPLETION_INDEX": str(n)}) for n, (at, name) in others)]
