"""How a node of an MPIJob learns its place.

The operator tells a worker nothing but that it is one (``K_MPI_JOB_ROLE``), so an agent that is its pod's own
command goes by its host name: the launcher, which must hold ranks too (``runLauncherAsWorker``), is node 0 and
``JOB-worker-I`` is node I + 1. An agent that mpirun started over ssh sees Open MPI's variables and none of the pod's.
"""

from __future__ import annotations

import re

from allranks.node.place import NoPlace, Place, Surroundings

HOSTFILE = "/etc/mpi/hostfile"
COUNTS = {
    "OMPI_COMM_WORLD_RANK": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "PMI_RANK": ("PMI_SIZE", "MPI_LOCALNRANKS"),
}
"""By an MPI's name for the rank, Open MPI's before that of MPICH and Intel: its names for how many there are."""
POD = re.compile(r"(.+)-(?:(launcher)|(worker)-(\d+))")


def place(around: Surroundings) -> Place:
    """The place of a pod, or of the one process that mpirun started on a node. Raises NoPlace."""
    rank = next((name for name in COUNTS if name in around.env), "")
    if rank:
        return _started_by_mpirun(around, rank, *COUNTS[rank])
    host, domain = around.host_and_domain
    match = POD.fullmatch(host)
    if match is None:
        raise NoPlace(f"the host name {host} is neither JOB-launcher nor JOB-worker-N")
    role = match[2] or match[3]
    if around.env.get("K_MPI_JOB_ROLE", role) != role:
        raise NoPlace(f"K_MPI_JOB_ROLE is {around.env['K_MPI_JOB_ROLE']!r}, but the host name is {host}")
    if role == "launcher":
        _check_hostfile(around, host)
    return around.place(0 if role == "launcher" else int(match[4]) + 1, f"{match[1]}-launcher.{domain}", host)


def _check_hostfile(around: Surroundings, host: str) -> None:
    """Only the launcher has it, and it may be written in any order."""
    hosts = [line.split()[0].partition(".")[0] for line in around.lines(HOSTFILE)]
    if not hosts:
        raise NoPlace(f"{HOSTFILE} is missing or empty")
    if host not in hosts:
        raise NoPlace(f"{HOSTFILE} does not list {host}: the MPIJob needs runLauncherAsWorker: true")
    around.must_count(len(hosts), HOSTFILE)


def _started_by_mpirun(around: Surroundings, rank: str, size: str, local_size: str) -> Place:
    """One process a node; mpirun's ``-x`` brings the coordinator's name, which no MPI tells."""
    if around.number(local_size) != 1:
        raise NoPlace(f"mpirun started {around.env[local_size]} agents on this node; it must start one (-N 1)")
    around.must_count(around.number(size), size)
    if rank.startswith("OMPI"):
        around.agree(rank, "PMIX_RANK")
    return around.place(around.number(rank), around.text("ALLRANKS_COORDINATOR"), rank)
