"""What an MPIJob's pods see: a launcher that is also the first worker, or workers that mpirun reaches over ssh.

Seen on mpi-operator 0.8.0 with Open MPI 4.1.4; engines.mpijob.start decides which of the two.
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
    if job.engines.mpijob.start == "mpirun" and job.launcher != "mpirun":
        return [_reached_by_mpirun(job, node, address, len(addresses)) for node, address in enumerate(addresses)]
    names = [f"{job.name}-launcher", *(f"{job.name}-worker-{node}" for node in range(len(addresses) - 1))]
    zone = f"{job.name}.{job.schedule.namespace or 'default'}.svc"
    hostfile = "".join(f"{name}.{zone} slots={job.ranks}\n" for name in names)
    launcher = pod(
        job, addresses[0], names[0], job.name, {"K_MPI_JOB_ROLE": "launcher", **open_mpi(job.ranks)},
        {"/etc/mpi/hostfile": hostfile},
    )  # fmt: skip
    workers = zip(addresses[1:], names[1:], strict=True)
    return [launcher, *(pod(job, address, name, job.name, {"K_MPI_JOB_ROLE": "worker"}) for address, name in workers)]


def _reached_by_mpirun(job: Job, node: int, address: str, nodes: int) -> Pod:
    """One agent a worker, with sshd's clean environment and what Open MPI adds; the launcher pod holds no rank.

    The universe counts the launcher's own slots too.
    """
    name = f"{job.name}-worker-{node}"
    env = {
        "OMPI_COMM_WORLD_RANK": str(node), "OMPI_COMM_WORLD_SIZE": str(nodes),
        "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_NODE_RANK": "0",
        "OMPI_UNIVERSE_SIZE": str((nodes + 1) * job.ranks), "OMPI_NUM_APP_CTX": "1", "OMPI_FIRST_RANKS": "0",
        "OMPI_APP_CTX_NUM_PROCS": str(nodes), "PMIX_RANK": str(node), "PMIX_HOSTNAME": name,
        "ALLRANKS_COORDINATOR": f"{job.name}-worker-0.{job.name}",
    }  # fmt: skip
    return pod(job, address, name, job.name, env)
