"""Mistakes with Kubeflow Trainer's TrainJob and its runtimes."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.rule import ERROR, RUNTIME, TRAIN, WARNING, Found, Rule, Subject
from allranks.manifest.gang import is_trainer, placed_words

HOSTFILE = "/etc/mpi/hostfile"
# The name by which a TrainJob changes its pods, and the versions that have it, from the first to before the last.
OVERRIDES = {
    "podSpecOverrides": ((2, 0), (2, 1)),
    "podTemplateOverrides": ((2, 1), (2, 2)),
    "runtimePatches": ((2, 2), (99,)),
}
OWN_CONTAINERS = ("node", "dataset-initializer", "model-initializer")


def overrides_version(subject: Subject) -> Iterator[Found]:
    """Overrides under a name that this version does not have."""
    for name, (first, end) in OVERRIDES.items():
        if not subject.spec[name]:
            continue
        if subject.trainer and not first <= subject.trainer < end:
            version = ".".join(map(str, subject.trainer))
            right = next(other for other, (begin, last) in OVERRIDES.items() if subject.trainer < last)
            yield Found(subject.spec[name], f"Trainer {version} has no {name}", f"write {right}")
        elif not subject.trainer and name != "runtimePatches":
            only = ".".join(map(str, first))
            yield Found(
                subject.spec[name], f"{name} is of Trainer {only} alone", "write runtimePatches (2.2 and later)"
            )


def patched_env(subject: Subject) -> Iterator[Found]:
    """Variables of Trainer's own containers in a patch."""
    for field in subject.spec["runtimePatches"].walk():
        for container in field["containers"].items:
            if container["env"] and container["name"].text in OWN_CONTAINERS:
                yield Found(container["env"], f"a patch sets env of {container['name'].text}", "set spec.trainer.env")


def mpi_hostfile(subject: Subject) -> Iterator[Found]:
    """A hostfile that the mpi policy does not make."""
    hostfile = subject.launch.hostfile
    is_mpi = subject.runtime is None or bool(subject.runtime.spec.at("mlPolicy", "mpi"))
    if hostfile and "$" not in hostfile and hostfile != HOSTFILE and is_mpi and hostfile.startswith("/"):
        yield Found(subject.command, f"the hostfile {hostfile}", f"write --hostfile {HOSTFILE}")


def discover_hosts(subject: Subject) -> Iterator[Found]:
    """The MPI operator's script, which Trainer does not have."""
    for word in placed_words(subject.spec["trainer"]):
        if "discover_hosts.sh" in word.text:
            yield Found(word, "/etc/mpi/discover_hosts.sh is used", f"read {HOSTFILE}")


def proc_per_node_text(subject: Subject) -> Iterator[Found]:
    """``numProcPerNode: auto``, which was taken until 2.1."""
    field = subject.spec.at("trainer", "numProcPerNode")
    if field and (field.is_text or field.number is None) and not (subject.trainer and subject.trainer < (2, 2)):
        yield Found(
            field, f"numProcPerNode: {field.text} is text", "write a number, or leave it out: all GPUs, else all cores"
        )


def launchers_many(subject: Subject) -> Iterator[Found]:
    """``numNodes`` above 1 in an mpi runtime whose trainer step is the launcher."""
    nodes = subject.spec.at("mlPolicy", "numNodes")
    launcher = next((role for role in subject.roles if is_trainer(role)), None)
    if subject.spec.at("mlPolicy", "mpi") and launcher and launcher.name == "launcher" and (nodes.number or 1) > 1:
        yield Found(
            nodes,
            f"numNodes: {nodes.text} in an mpi runtime",
            "write numNodes: 1; a TrainJob's numNodes sets the nodes",
        )


def mpi_implementation(subject: Subject) -> Iterator[Found]:
    """An MPI that Trainer cannot start."""
    field = subject.spec.at("mlPolicy", "mpi", "mpiImplementation")
    if field and field.text != "OpenMPI":
        yield Found(field, f"mpiImplementation: {field.text}", "write OpenMPI")


def one_is_two(subject: Subject) -> Iterator[Found]:
    """One node, which becomes two hosts."""
    runtime = subject.runtime
    is_node = runtime is not None and runtime.spec.at("mlPolicy", "mpi", "runLauncherAsNode").is_true
    nodes = subject.spec.at("trainer", "numNodes")
    if is_node and nodes.number == 1:
        yield Found(
            nodes,
            "numNodes: 1 with runLauncherAsNode",
            "write numNodes: 2, which makes the same, or use a torch runtime",
        )


def launcher_alone(subject: Subject) -> Iterator[Found]:
    """Image, resources and variables that reach the launcher alone."""
    runtime, trainer = subject.runtime, subject.spec["trainer"]
    if runtime is None or not runtime.spec.at("mlPolicy", "mpi"):
        return
    to_launcher = any(is_trainer(role) and role.name == "launcher" for role in runtime.roles)
    is_node = runtime.spec.at("mlPolicy", "mpi", "runLauncherAsNode").is_true
    for name in ("image", *(() if is_node else ("env", "resourcesPerNode"))):
        if to_launcher and trainer[name]:
            fix = f"write it into the 'node' job of {runtime.kind} {runtime.name} too"
            yield Found(trainer[name], f"trainer.{name} reaches the launcher alone", fix)


def group_deadlock(subject: Subject) -> Iterator[Found]:
    """A pod group that counts pods which wait for the group."""
    waiting = next((role for role in subject.roles if role.spec["dependsOn"].items), None)
    if subject.spec["podGroupPolicy"] and waiting:
        at = subject.spec["podGroupPolicy"]
        fix = "remove podGroupPolicy (use Kueue), or dependsOn"
        yield Found(at, f"podGroupPolicy, and {waiting.name} depends on others", fix)


RULES = (
    Rule("overrides-version", ERROR, TRAIN, overrides_version,
        "The API server refuses or drops it: tolerations, volumes and node selectors are not there."),
    Rule("patched-env", ERROR, TRAIN, patched_env,
        "The webhook refuses the TrainJob."),
    Rule("mpi-hostfile", ERROR, TRAIN, mpi_hostfile,
        "Trainer mounts its hostfile at /etc/mpi/hostfile alone; with another path all ranks run on one node, or"
        " none."),
    Rule("discover-hosts", ERROR, TRAIN, discover_hosts,
        "Trainer makes no such script; only the MPI operator does."),
    Rule("proc-per-node-text", ERROR, TRAIN, proc_per_node_text,
        "From 2.2 on it is a number; the API server refuses text."),
    Rule("launchers-many", ERROR, RUNTIME, launchers_many,
        "It is the number of launchers: each runs mpirun over the same nodes."),
    Rule("mpi-implementation", ERROR, RUNTIME, mpi_implementation,
        "Trainer starts Open MPI alone; every TrainJob of this runtime fails."),
    Rule("one-node-is-two", WARNING, TRAIN, one_is_two,
        "The launcher is a node and one more is made: two hosts, twice the GPUs."),
    Rule("launcher-alone", WARNING, TRAIN, launcher_alone,
        "Ranks run in the runtime's own image and resources, not in yours."),
    Rule("pod-group-deadlock", ERROR, RUNTIME, group_deadlock,
        "The group counts pods that come only after others are ready: nothing starts."),
)  # fmt: skip
