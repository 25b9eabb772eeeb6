"""Each kind of manifest as a spec: a table from kind to function."""

from __future__ import annotations

from collections.abc import Callable

from allranks.convert.command import Around, carry_command
from allranks.convert.draft import Draft, Lost
from allranks.convert.pod import carry_annotations, carry_env, carry_pod, carry_resources, same
from allranks.errors import SpecError
from allranks.manifest.field import Field
from allranks.manifest.gang import Manifest, Role, is_trainer, words
from allranks.spec.command import label
from allranks.spec.job import Job
from allranks.spec.tree import Node

ENGINE = {"MPIJob": "mpijob", "PyTorchJob": "pytorchjob", "TrainJob": "trainjob", "JobSet": "jobset", "Job": "jobset"}
SSHD = "sshd"


def from_manifest(manifest: Manifest) -> tuple[Job, list[Lost]]:
    """Make a spec of a manifest. Raises SpecError where there is nothing to run in it."""
    draft = Draft(manifest.source, ENGINE[manifest.kind])
    _name(draft, manifest)
    if (namespace := manifest.root.at("metadata", "namespace")).text:
        draft.set("schedule.namespace", namespace.text, namespace)
    CARRY[manifest.kind](draft, manifest)
    carry_annotations(draft, manifest.root["metadata"])
    draft.rest(manifest.root)
    return draft.job(), draft.lost


def _name(draft: Draft, manifest: Manifest) -> None:
    given, name = manifest.root.at("metadata", "name"), label(manifest.name or manifest.kind)
    draft.set("name", name)
    if given and given.text != name:
        draft.lose(given, f"a run's name is a DNS label of at most 40 characters: it is named {name}")
    draft.take(given)


def where(draft: Draft, field: Field) -> str:
    """A place in the file, as messages name it."""
    return f"{draft.source}:{field.position.line}:{field.position.column}"


def _command(draft: Draft, role: Role, around: Around) -> None:
    argv = role.argv
    _take_words(draft, role.container)
    if not argv:
        raise SpecError(
            f"{where(draft, role.container)}: no command here, so the image's own would run; "
            "write it as 'command:', then convert again"
        )
    _entrypoint(draft, role.container)
    carry_command(draft, argv, around, where(draft, role.container["command"] or role.container["args"]))


def _take_words(draft: Draft, container: Field) -> None:
    """Take a command and its arguments; what is no word is none of them."""
    for part in (container["command"], container["args"]):
        for item in part.items:
            if item.is_mapping or item.is_list:
                draft.lose(item, "a word of a command is text")
        draft.take_fit(part)


def _entrypoint(draft: Draft, container: Field) -> None:
    """Arguments alone are for the image's own program, which no manifest names."""
    if not container["command"].items:
        why = "the image's own ENTRYPOINT takes these arguments: write it in front of them in 'run'"
        draft.lose(container["args"], why, "the program")


def _policy(draft: Draft, policy: Field) -> None:
    """What a ``runPolicy``, a Job or a TrainJob says of failure and of the end."""
    if (count := policy["backoffLimit"]).number is not None:
        draft.set("failure.restarts", count.number, count)
    for name, field in (("activeDeadlineSeconds", "deadline"), ("ttlSecondsAfterFinished", "ttl")):
        if policy[name].number is not None:
            draft.set(f"failure.{field}", f"{policy[name].number}s", policy[name])
    if (clean := policy["cleanPodPolicy"]).text in ("None", "Running", "All"):
        draft.set("failure.clean", clean.text.lower(), clean)


def _mpijob(draft: Draft, manifest: Manifest) -> None:
    launcher, worker = manifest.role("Launcher"), manifest.role("Worker")
    if launcher is None:
        raise SpecError(
            f"{where(draft, manifest.spec)}: no mpiReplicaSpecs.Launcher; that is where an MPIJob's command is"
        )
    spec = manifest.spec
    _policy(draft, spec["runPolicy"])
    _policy(draft, spec)  # where v1 and v1alpha2 have some of it
    nodes_of = worker or launcher
    draft.take(spec["mainContainer"])
    draft.take_fit(spec["slotsPerWorker"], spec["runLauncherAsWorker"])
    draft.take_fit(*(role.spec["replicas"] for role in manifest.roles))
    carry_pod(draft, nodes_of)
    if worker:
        carry_env(draft, launcher.container)
        if any(SSHD in text for text in worker.argv) or not worker.argv:
            draft.take(worker.container["command"], worker.container["args"])
        else:
            why = "allranks starts its agents instead, and the ranks by them"
            draft.lose(worker.container["command"] or worker.container["args"], why)
    is_node = bool(worker) and manifest.launcher_is_worker
    nodes = (worker.count if worker else 1) + (1 if is_node else 0)
    _command(draft, launcher, Around(nodes, manifest.slots, is_launcher=True))
    if worker:
        draft.take(launcher.container["name"])
        same(draft, worker.template, launcher.template)


def _pytorchjob(draft: Draft, manifest: Manifest) -> None:
    roles = [role for role in (manifest.role("Master"), manifest.role("Worker")) if role]
    if not roles:
        raise SpecError(f"{where(draft, manifest.spec)}: no pytorchReplicaSpecs with a Master or a Worker")
    first = roles[0]
    _policy(draft, manifest.spec["runPolicy"])
    elastic = manifest.spec["elasticPolicy"]
    if elastic["maxRestarts"].number is not None:
        draft.set("failure.restarts", elastic["maxRestarts"].number, elastic["maxRestarts"])
    draft.take_fit(manifest.spec["nprocPerNode"], *(role.spec["replicas"] for role in roles))
    carry_pod(draft, first)
    per_node = manifest.spec["nprocPerNode"].number
    _command(draft, first, Around(max(sum(role.count for role in roles), 1), per_node))
    for role in roles[1:]:
        same(draft, first.template, role.template)


def _of_jobs(draft: Draft, roles: tuple[Role, ...], spec: Field) -> Role:
    """The role whose pods are the nodes: the most GPUs, then the most pods."""
    if not roles:
        raise SpecError(f"{where(draft, spec)}: no replicated jobs, so nothing to run")
    role = max(roles, key=lambda one: (one.gpus * one.count, one.count))
    inner = role.spec["spec"] if role.name == "job" else role.spec.at("template", "spec")
    draft.take(role.spec["name"], inner["completionMode"])
    draft.take_fit(role.spec["replicas"], inner["parallelism"], inner["completions"])
    _policy(draft, inner)
    return role


def _jobset(draft: Draft, manifest: Manifest) -> None:
    role = _of_jobs(draft, manifest.roles, manifest.spec)
    _policy(draft, manifest.spec)
    _failure_policy(draft, manifest.spec)
    carry_pod(draft, role)
    _command(draft, role, Around(max(role.count, 1)))


def _failure_policy(draft: Draft, spec: Field) -> None:
    if (restarts := spec.at("failurePolicy", "maxRestarts")).number is not None:
        draft.set("failure.restarts", restarts.number, restarts)


def _trainjob(draft: Draft, manifest: Manifest) -> None:
    spec, trainer, runtime = manifest.spec, manifest.spec["trainer"], manifest.runtime
    policy = runtime.spec["mlPolicy"] if runtime else Field(None)
    draft.take_fit(*spec["runtimeRef"].fields.values())
    draft.take(spec["runtimeRef"])
    _policy(draft, spec)
    role = _runtime(draft, runtime) if runtime else None
    if runtime is None and spec.at("runtimeRef", "kind").text in ("", "ClusterTrainingRuntime"):
        draft.set("engines.trainjob.runtime", spec.at("runtimeRef", "name").text or None, spec.at("runtimeRef", "name"))
    for name, path in (("image", "image"), ("workingDir", "workdir")):
        if trainer[name].text:
            draft.set(path, trainer[name].text, trainer[name])
    carry_env(draft, trainer)
    _trainer_resources(draft, trainer)
    count, slots = trainer["numNodes"], trainer["numProcPerNode"]
    draft.take_fit(count, slots)
    _take_words(draft, trainer)
    is_mpi = bool(policy["mpi"])
    per_node = slots.number or policy.at("mpi" if is_mpi else "torch", "numProcPerNode").number
    nodes = max(count.number or policy["numNodes"].number or 1, 1)
    argv = words(trainer) or (role.argv if role else ())
    if not argv:
        raise SpecError(f"{where(draft, trainer)}: no command here, and its runtime is not in this file; add either")
    if words(trainer):
        _entrypoint(draft, trainer)
    carry_command(draft, argv, Around(nodes, per_node, is_launcher=is_mpi), where(draft, trainer["command"]))


def _trainer_resources(draft: Draft, trainer: Field) -> None:
    # The same shape as a container's, under another name.
    held = trainer["resourcesPerNode"]
    if held.is_mapping and held.node:
        container = Node(held.position, {"resources": held.node}, keys={"resources": held.position})
        role = Role("trainer", trainer, 1, Field(None), Field(container, trainer.path))
        carry_resources(draft, role)
        draft.rest(role.container["resources"])
        draft.take(held)


def _runtime(draft: Draft, runtime: Manifest) -> Role | None:
    """Carry what the runtime's own pods have; a TrainJob's fields then win."""
    template = runtime.spec.at("template", "spec")
    nodes = [role for role in runtime.roles if role.name == "node"] or [one for one in runtime.roles if is_trainer(one)]
    role = (nodes or list(runtime.roles) or [None])[0]  # type: ignore[list-item]
    inner = Draft(draft.source, draft.engine, fields=draft.fields, origins=draft.origins)
    if role:
        carry_pod(inner, role)
        _take_words(inner, role.container)
        inner.take(*(one.spec["name"] for one in runtime.roles))
        _policy(inner, role.spec.at("template", "spec"))
        for other in runtime.roles:
            if is_trainer(other) and other is not role:
                same(inner, role.template, other.template)
    _failure_policy(inner, template)
    policy = runtime.spec["mlPolicy"]
    inner.take_fit(policy["numNodes"], *(policy.at(kind, "numProcPerNode") for kind in ("mpi", "torch")))
    inner.take(runtime.root["metadata"], policy)
    inner.rest(runtime.root)
    draft.lost += inner.lost
    return role


CARRY: dict[str, Callable[[Draft, Manifest], None]] = {
    "MPIJob": _mpijob,
    "PyTorchJob": _pytorchjob,
    "TrainJob": _trainjob,
    "JobSet": _jobset,
    "Job": _jobset,
}
