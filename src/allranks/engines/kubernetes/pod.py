"""The pods of a gang: one template, the same for every node, from what the job says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from allranks.engines.kubernetes import delivery, free
from allranks.engines.kubernetes.admission import Admission
from allranks.engines.kubernetes.manifest import Explained, merge, without_nothing
from allranks.errors import SpecError

if TYPE_CHECKING:
    from allranks.spec.job import Job, Toleration

CONTAINER = "ranks"
LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
LOST_SECONDS = 5
"""A pod on a node that the cluster has lost is given up after this long; Kubernetes' own default is five minutes."""
GRACE_MARGIN = 5
"""Seconds beyond ``failure.grace`` that a pod has: the agent ends its ranks in that time and then itself."""


def template(
    job: Job,
    engine: str,
    admission: Admission,
    *,
    container: str = CONTAINER,
    restart: str = "",
    command: Sequence[str] = delivery.COMMAND,
    env: Sequence[dict[str, Any]] = (),
    more: dict[str, Any] | None = None,
    agent: bool = True,
) -> dict[str, Any]:
    """A pod template with one container. Raises SpecError for a job without an image.

    ``restart`` is its restartPolicy, empty where the engine has that elsewhere; ``more`` are further fields of its
    spec, ``env`` further variables. ``agent`` is whether our files are mounted, for a command that is the agent.
    """
    must_have_image(job, engine)
    spec = {
        **_pod(job, admission, restart),
        **(more or {}),
        "containers": [_container(job, container, command, env, agent)],
    }
    metadata = without_nothing(
        {
            "labels": {**delivery.labels(job, engine), **admission.pod_labels},
            "annotations": {**job.network.annotations, **admission.pod_annotations},
        },
        annotations="network.annotations" if job.network.annotations else "",
    )
    volumes = [*(delivery.volumes(job.name) if agent else ()), *(volume for volume, _ in _volumes(job))]
    made = merge({**spec, "volumes": volumes}, job.pod)
    return {"metadata": metadata, "spec": made if isinstance(made, Explained) else Explained(made, **_why(job))}


def must_have_image(job: Job, engine: str) -> None:
    """Raise SpecError for a job without one."""
    if not job.image:
        raise SpecError(f"image: engine {engine} runs containers; say which, such as image: ghcr.io/acme/train:1")


def _pod(job: Job, admission: Admission, restart: str) -> dict[str, Any]:
    schedule = job.schedule
    return without_nothing({
        "restartPolicy": restart,
        "schedulerName": admission.scheduler,
        "priorityClassName": schedule.priority,
        "nodeSelector": dict(schedule.node_selector),
        "affinity": _affinity(job, admission),
        "tolerations": list(_tolerations(job)),
        "terminationGracePeriodSeconds": int(job.failure.grace.seconds) + GRACE_MARGIN,
        "enableServiceLinks": False,
        "serviceAccountName": free.account(job),
    })  # fmt: skip


def _why(job: Job) -> dict[str, str]:
    return {
        "terminationGracePeriodSeconds": f"failure.grace ({job.failure.grace}), and {GRACE_MARGIN} s for the agent",
        "tolerations": f"a lost node is given up after {LOST_SECONDS} s, not after Kubernetes' five minutes",
        "priorityClassName": "schedule.priority",
        "serviceAccountName": "failure.force_delete",
        "affinity": "schedule.topology",
        "enableServiceLinks": "no variables for each service of the namespace",
    }


def _container(
    job: Job, name: str, command: Sequence[str], env: Sequence[dict[str, Any]], agent: bool
) -> dict[str, Any]:
    ours = [Explained({"name": "TMPDIR", "value": f"{delivery.STATE}/tmp"})] if agent else []
    made = without_nothing(
        {
            "name": name,
            "image": job.image,
            "command": list(command),
            "workingDir": job.workdir if (job.workdir or "").startswith("/") else "",
            "env": [*ours, *env],
            "envFrom": [_env_from(source) for source in job.env_from],
            "resources": _resources(job),
            "volumeMounts": [*(delivery.mounts() if agent else ()), *(mount for _, mount in _volumes(job))],
            "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}} if uses_rdma(job) else {},
        },
        **(
            {"env": f"the ranks' own variables are in {delivery.PLAN}, where no shell or operator changes them"}
            if agent
            else {}
        ),
        envFrom="env_from",
        securityContext="RDMA locks memory (resources.extra, network.rdma)",
    )
    merged: dict[str, Any] = merge(made, job.container)
    return merged


def uses_rdma(job: Job) -> bool:
    """Whether ranks will lock memory for RDMA, which the kernel lets nobody do without that capability."""
    return job.network.rdma == "required" or any("rdma" in name or "hca" in name for name in job.resources.extra)


def _env_from(source: str) -> dict[str, Any]:
    kind, _, name = source.partition("/")
    return {"secretRef" if kind == "secret" else "configMapRef": {"name": name}}


def _resources(job: Job) -> dict[str, Any]:
    """Requests that equal the limits: a gang is worth nothing when one of its nodes is slowed down or evicted.

    CPU has no limit, because the kernel would halt all ranks of a node in turns (CFS quota).
    """
    wanted = job.resources
    counted: dict[str, Any] = {wanted.gpu_resource: wanted.gpus} if wanted.gpus else {}
    counted.update({name: amount.written() for name, amount in wanted.extra.items()})
    memory = {"memory": str(wanted.memory)} if wanted.memory else {}
    cpu = {"cpu": str(wanted.cpu)} if wanted.cpu else {}
    return without_nothing({"requests": {**cpu, **memory, **counted}, "limits": {**memory, **counted}})


def _volumes(job: Job) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each volume of the job with its mount; /dev/shm is one of them, in memory."""
    if job.resources.shm:
        source = Explained({"medium": "Memory", "sizeLimit": str(job.resources.shm)}, sizeLimit="resources.shm")
        yield {"name": "shm", "emptyDir": source}, {"name": "shm", "mountPath": "/dev/shm"}
    for number, volume in enumerate(job.volumes):
        name = f"volume-{number}"
        if volume.claim:
            there: dict[str, Any] = {"persistentVolumeClaim": {"claimName": volume.claim}}
        else:
            there = {"hostPath": {"path": volume.host}}
        mount = {"name": name, "mountPath": volume.path, **({"readOnly": True} if volume.read_only else {})}
        yield {"name": name, **there}, mount


# Where pods go


def _tolerations(job: Job) -> Iterator[dict[str, Any]]:
    """The job's own, and for what a lost node is tainted with, unless the job speaks of that itself."""
    yield from map(_toleration, job.schedule.tolerations)
    spoken_of = {toleration.key for toleration in job.schedule.tolerations}
    for key in LOST:
        if key not in spoken_of:
            yield {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_SECONDS}


def _toleration(said: Toleration) -> dict[str, Any]:
    return without_nothing({
        "key": said.key, "operator": said.operator, "value": said.value, "effect": said.effect,
        "tolerationSeconds": said.toleration_seconds,
    })  # fmt: skip


def _affinity(job: Job, admission: Admission) -> dict[str, Any]:
    """All pods of the run in one domain of the topology, where nobody else sees to it."""
    topology = job.schedule.topology
    if topology is None or admission.places:
        return {}
    term = {
        "labelSelector": {"matchLabels": {delivery.RUN: job.name}},
        "topologyKey": topology.required or topology.preferred,
    }
    if topology.required:
        return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    weighed = {"weight": 100, "podAffinityTerm": term}
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [weighed]}}
