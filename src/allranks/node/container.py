"""Where a node is a container: what its init finds mounted, what it makes of that, and what outlives a restart of it.

The plan and the secret are mounted read-only, so the init lays out the run's directory in a volume that is the pod's:
it is still there when kubelet starts the container again. A container that gave up leaves a marker there; one that
finds it gives up at once, with the same last words, instead of training on with a budget that nobody remembers.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from typing import Optional

from allranks.node import processes, termination
from allranks.node.cause import Cause, utc
from allranks.node.files import write_whole
from allranks.node.gang import Gang
from allranks.node.status import Status

FIRST = 1
BY_MPIRUN = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
MPIS_OWN = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "MPI_", "I_MPI_", "HYDRA_", "ALLRANKS_COORDINATOR")
GIVEN_UP = "given-up.json"
LARGEST_MARKER = 65536


def lay_out(gang: Gang, mounted: str) -> Gang:
    """Make the run's directory from what lies beside the ``mounted`` plan; returns the gang as it is here.

    Its working folder is absolute then: a relative one starts from the container's. Raises OSError.
    """
    if os.path.exists(plan_of(gang)) and os.path.samefile(mounted, plan_of(gang)):
        return gang  # somebody else has laid it out
    workdir = os.path.abspath(os.path.expanduser(gang.workdir or "."))
    if not os.path.isdir(workdir):
        raise OSError(f"workdir {workdir} is not in the image or on a volume")
    for folder in (os.path.join(gang.state, "logs"), gang.cache, os.environ.get("TMPDIR", "")):
        if folder:
            os.makedirs(folder, exist_ok=True)
    found = replace(gang, workdir=workdir)
    write_whole(plan_of(gang), json.dumps(asdict(found)))
    with open(gang.secret or os.path.join(os.path.dirname(mounted), "secret"), "rb") as file:
        write_whole(os.path.join(gang.state, "secret"), file.read(), mode=0o600)
    return found


def plan_of(gang: Gang) -> str:
    """The plan that this node's processes read and may change."""
    return os.path.join(gang.state, "plan.json")


def take_environment() -> None:
    """Have the container's own environment where mpirun started this: sshd leaves only its own and Open MPI's.

    It is that of the container's first process, whose user this must be.
    """
    if os.getpid() == FIRST or not any(name in os.environ for name in BY_MPIRUN):
        return
    found = processes.environment(FIRST).items()
    own = {name: value for name, value in os.environ.items() if name.startswith(MPIS_OWN)}
    os.environ.update((os.fsdecode(name), os.fsdecode(value)) for name, value in found)
    os.environ.update(own)


def gave_up(gang: Gang) -> bool:
    """Whether this container, before it was started again, gave up the run; then its last words are left once more."""
    try:
        with open(os.path.join(gang.state, GIVEN_UP), encoding="ascii") as file:
            words = file.read(LARGEST_MARKER)
    except FileNotFoundError:
        return False
    if gang.termination and words:
        with open(gang.termination, "w", encoding="ascii") as file:
            file.write(words)
    return True


def give_up(gang: Gang) -> None:
    """Leave the marker. Raises OSError."""
    words = ""
    if gang.termination and os.path.exists(gang.termination):
        with open(gang.termination, encoding="ascii", errors="replace") as file:
            words = file.read(LARGEST_MARKER)
    write_whole(os.path.join(gang.state, GIVEN_UP), words)


def leave_reason(gang: Gang, node: Optional[int], reason: str, code: int) -> None:
    """Leave what the agents could not: why this node could not even start. Raises OSError."""
    cause = Cause(0, "preflight", utc(), reason, node=node, exit=code)
    status = Status(gang.run, gang.engine, "failed", reason, causes=[cause], ended=utc(), exit_code=code)
    termination.write(gang, node or 0, termination.cut(status))
