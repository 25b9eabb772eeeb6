"""How a node of a TrainJob learns its place: PET_* says it under the torch policy, its host name under the mpi policy.

The mpi policy gives the pods no number. There the launcher, which must hold ranks too (``runLauncherAsNode``), is
node 0 wherever the hostfile lists it: Open MPI puts rank 0 on mpirun's own node.
"""

from __future__ import annotations

import re

from allranks.node.place import NoPlace, Place, Surroundings

POD = re.compile(r"(.+)-(?:(launcher)-0-0|node-0-(\d+))")


def place(around: Surroundings) -> Place:
    """The place of a pod. Raises NoPlace."""
    if "PET_NODE_RANK" not in around.env:
        return _under_mpi(around)
    around.must_count(around.number("PET_NNODES"), "PET_NNODES")
    around.agree("PET_NODE_RANK", "JOB_COMPLETION_INDEX")
    return around.place(around.number("PET_NODE_RANK"), around.text("PET_MASTER_ADDR"), "PET_NODE_RANK")


def _under_mpi(around: Surroundings) -> Place:
    host, domain = around.host_and_domain
    match = POD.fullmatch(host)
    if match is None:
        raise NoPlace(
            f"PET_NODE_RANK is not set, and the host name {host} is neither JOB-launcher-0-0 nor JOB-node-0-N"
        )
    node = 0 if match[2] else int(match[3]) + 1
    return around.place(node, f"{match[1]}-launcher-0-0.{domain}", host)
