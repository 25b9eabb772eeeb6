"""Variables that do not mean what ranks take them for, or do not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.rule import ERROR, EVERY, PYTORCH, TRAIN, WARNING, Found, Rule, Subject
from allranks.manifest.field import Field
from allranks.manifest.gang import placed_words

INVENTED = (
    "OMPI_COMM_WORLD_MASTER_ADDR",
    "OMPI_COMM_WORLD_MASTER_PORT",
    "OMPI_MASTER_ADDR",
    "PMIX_MASTER_ADDR",
    "PET_MASTER_HOST",
)
IDENTITY = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK")
# Which of them an engine sets in a pod, before any launcher.
SET_BY = {"PyTorchJob": ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")}
INSTEAD = {
    "MPIJob": "under mpirun read OMPI_COMM_WORLD_RANK and _SIZE; set MASTER_ADDR in the launcher and pass it with -x",
    "TrainJob": "use PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR, or let torchrun set them for each rank",
    "JobSet": "use JOB_COMPLETION_INDEX and the name of pod 0: <jobset>-<job>-0-0.<jobset>",
    "Job": "use JOB_COMPLETION_INDEX and a headless Service",
}
RESERVED = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
USE = r"\$\{?%s\b|\$\(%s\)"


def _texts(subject: Subject) -> Iterator[Field]:
    """The commands, arguments and variables of all containers."""
    for container in subject.containers:
        yield from placed_words(container)
        for entry in container["env"].items:
            yield entry["value"]


def invented(subject: Subject) -> Iterator[Found]:
    """Names that people expect and nobody sets."""
    for text in _texts(subject):
        for name in INVENTED:
            if name in text.text:
                fix = (
                    "set MASTER_ADDR to rank 0's host yourself: of the first line of /etc/mpi/hostfile under an MPIJob"
                )
                yield Found(text, f"{name} is used", fix)


def unset(subject: Subject) -> Iterator[Found]:
    """The variables of a rank, used where no rank is yet."""
    if subject.kind not in (*INSTEAD, *SET_BY):
        return
    given = {name for role in subject.roles for name in role.env} | {
        one["name"].text for one in subject.spec.at("trainer", "env").items
    }
    for text in _texts(subject):
        for name in IDENTITY:
            is_set = name in given or name in SET_BY.get(subject.kind, ()) or re.search(rf"\b{name}=", text.text)
            if not is_set and re.search(USE % (name, name), text.text):
                yield Found(
                    text,
                    f"${name} is used, and nobody sets it there",
                    INSTEAD.get(subject.kind, "let torchrun set it for each rank"),
                )


def universe_size(subject: Subject) -> Iterator[Found]:
    """OMPI_UNIVERSE_SIZE for the number of ranks."""
    for text in _texts(subject):
        if "OMPI_UNIVERSE_SIZE" in text.text:
            yield Found(text, "OMPI_UNIVERSE_SIZE is used", "use OMPI_COMM_WORLD_SIZE")


def world_size_for_nodes(subject: Subject) -> Iterator[Found]:
    """WORLD_SIZE where the number of nodes is meant."""
    nproc = subject.spec["nprocPerNode"].number
    for option, values in subject.launch.options.items():
        if option in ("nnodes", "num_nodes") and re.search(r"WORLD_SIZE", "".join(values)) and (nproc or 1) > 1:
            what = f"--{option}=$WORLD_SIZE, which counts processes here: nprocPerNode is {nproc}"
            yield Found(subject.command, what, f"write --{option}=$PET_NNODES")
        if option in ("nproc_per_node", "num_gpus") and re.search(r"WORLD_SIZE", "".join(values)):
            yield Found(subject.command, f"--{option}=$WORLD_SIZE", f"write --{option}=$PET_NPROC_PER_NODE")


def rank_counts_pods(subject: Subject) -> Iterator[Found]:
    """Several GPUs, and one process that takes the pod's number for its rank."""
    launch = subject.launch
    if launch.launcher != "native" or not subject.argv or launch.doubt or "torchrun" in " ".join(subject.argv):
        return
    role = subject.roles[0] if subject.roles else None
    if role and role.is_agent:
        return
    several = max(role.gpus if role else 0, subject.spec["nprocPerNode"].number or 1)
    if several > 1:
        fix = f"start it with torchrun --nproc-per-node={several}"
        yield Found(subject.command, f"one process a pod, where {several} ranks are meant", fix)


def set_by_hand(subject: Subject) -> Iterator[Found]:
    """Variables that the operator overwrites."""
    for role in subject.roles:
        for name, entry in role.env.items():
            if name in (*SET_BY["PyTorchJob"], *RESERVED):
                yield Found(entry, f"{name} is set by hand", "leave it out")


def reserved(subject: Subject) -> Iterator[Found]:
    """Variables that Trainer's webhook refuses."""
    for entry in subject.spec.at("trainer", "env").items:
        if entry["name"].text in RESERVED:
            yield Found(entry, f"{entry['name'].text} is reserved", "leave it out; set numNodes and numProcPerNode")


RULES = (
    Rule("variable-invented", ERROR, EVERY, invented,
        "Open MPI and the operators set no such variable; it is empty, and ranks wait for nobody."),
    Rule("variable-unset", ERROR, EVERY, unset,
        "Here the engine sets no such variable: it is empty where it is used."),
    Rule("universe-size", WARNING, EVERY, universe_size,
        "It counts slots, also the launcher's: 6 where 4 ranks run."),
    Rule("world-size-for-nodes", ERROR, PYTORCH, world_size_for_nodes,
        "WORLD_SIZE is pods x nprocPerNode: torchrun waits for nodes that never come."),
    Rule("rank-counts-pods", ERROR, PYTORCH, rank_counts_pods,
        "RANK is the pod's number and no LOCAL_RANK is set: one GPU works, the others do nothing."),
    Rule("rank-set-by-hand", WARNING, PYTORCH, set_by_hand,
        "The operator sets it after you, so yours is never seen."),
    Rule("variable-reserved", ERROR, TRAIN, reserved,
        "The webhook refuses the TrainJob."),
)  # fmt: skip
