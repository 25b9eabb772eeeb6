"""What the engine trainjob makes of a job: a TrainingRuntime of the run's own and a TrainJob, or only the latter.

A TrainJob has no field for restarts, volumes or pods: those are its runtime's. With ``engines.trainjob.runtime`` the
runtime is one that the cluster has; then the job's own settings are patches on it, as far as it lets itself be patched.
The torch policy numbers the pods; ``launcher: mpirun`` needs nothing of the mpi policy, as the agents start mpirun.
Seen on Trainer 2.2.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from allranks.engines.jobset import plan as jobset
from allranks.engines.kubernetes import delivery, free, pod, render
from allranks.engines.kubernetes.kinds import TRAINJOB
from allranks.engines.kubernetes.manifest import Explained, without_nothing
from allranks.errors import SpecError

if TYPE_CHECKING:
    from allranks.engines.engine import Plan
    from allranks.engines.kubernetes.admission import Admission
    from allranks.engines.kubernetes.cluster import Cluster
    from allranks.spec.job import Job

ENGINE = "trainjob"
NODE = "node"
"""Trainer's name for the replicated Job and for the container that it gives its variables to."""
STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
API = TRAINJOB.api_version
MANAGER = f"{delivery.PREFIX}/run"
WHY_NOT = {
    "failure.ttl": "Trainer before 2.3 starts a run again whose JobSet was removed by its ttl",
    "failure.clean": "neither Trainer nor JobSet deletes pods that have ended, nor leaves any that run",
}
PATCHABLE = {
    "runtimePatches": {
        "serviceAccountName", "nodeSelector", "affinity", "tolerations", "volumes", "initContainers",
        "imagePullSecrets", "securityContext", "schedulingGates",
    },
    "podTemplateOverrides": {
        "serviceAccountName", "nodeSelector", "affinity", "tolerations", "volumes", "initContainers",
        "imagePullSecrets", "schedulingGates",
    },
    "podSpecOverrides": {"serviceAccountName", "nodeSelector", "tolerations", "volumes", "initContainers"},
}  # fmt: skip
"""What a TrainJob may change of its runtime's pods, beside the container's mounts, by the field that does it."""
IN_CONTAINER = {"name", "image", "command", "env", "volumeMounts", "resources", "securityContext"}
"""What reaches the runtime's container: by the TrainJob's ``trainer`` or by a patch."""
GRACE_OF_KUBERNETES = 30
OF_THE_RUNTIME = {"restartPolicy", "enableServiceLinks", "containers", "terminationGracePeriodSeconds"}
"""What the runtime decides where it cannot be patched; none of it is of the job's own asking."""


def plan(job: Job, cluster: Cluster) -> Plan:
    """Render the job. Raises SpecError for what cannot be."""
    namespace = render.namespace_of(job, cluster)
    admission = render.admitted(job, ENGINE, cluster)
    runtime = job.engines.trainjob.runtime
    names = [f"{job.name}-{NODE}-0-{node}.{job.name}" for node in range(job.nodes)]
    made = _on_existing(job, admission, cluster) if runtime else _on_own(job, admission)
    documents = [
        *render.beside(job, ENGINE, namespace, names, admission.group if runtime else None),
        *([] if runtime else [_runtime(job, admission, namespace)]),
        render.main_object(job, ENGINE, admission, namespace, API, "TrainJob", made),
    ]
    return render.plan(job, ENGINE, documents, why_not=WHY_NOT, notes=[*admission.notes, *_notes(job)])


# A runtime of the run's own


def _on_own(job: Job, admission: Admission) -> Explained:
    return without_nothing(
        {
            "suspend": admission.suspend or None,
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": job.name},
            # Without it Trainer gives the pods no variables at all.
            "trainer": Explained(
                {"numNodes": job.nodes, "numProcPerNode": job.ranks}, numNodes="nodes", numProcPerNode="ranks_per_node"
            ),
        },
        suspend=render.HELD_BACK,
    )


def _runtime(job: Job, admission: Admission, namespace: str) -> dict[str, Any]:
    policy: dict[str, Any] = {admission.by: {}} if admission.by in ("coscheduling", "volcano") else {}
    spec = without_nothing({
        "mlPolicy": {"numNodes": job.nodes, "torch": {}},
        "podGroupPolicy": policy,
        "template": {**_queue(job, admission), "spec": jobset.set_spec(job, _template(job, admission), STEP, NODE)},
    })  # fmt: skip
    metadata = delivery.metadata(job, ENGINE, namespace)
    return {"apiVersion": API, "kind": "TrainingRuntime", "metadata": metadata, "spec": spec}


def _queue(job: Job, admission: Admission) -> dict[str, Any]:
    if admission.by != "volcano" or not job.schedule.queue:
        return {}
    return {"metadata": {"annotations": {"scheduling.volcano.sh/queue-name": job.schedule.queue}}}


def _template(job: Job, admission: Admission) -> dict[str, Any]:
    """Trainer makes the PodGroup itself, and marks the pods as its members."""
    if admission.group:
        admission = replace(admission, pod_labels={}, pod_annotations={})
    return pod.template(job, ENGINE, admission, container=NODE, restart="Never", env=[jobset.restart_variable()])


# A runtime that the cluster has


def _on_existing(job: Job, admission: Admission, cluster: Cluster) -> Explained:
    template = pod.template(job, ENGINE, admission, container=NODE, env=[])
    container = template["spec"]["containers"][0]
    field = cluster.patches
    _check_container(job, container, field)
    trainer = without_nothing(
        {
            "image": container["image"], "command": container["command"], "env": container["env"],
            "numNodes": job.nodes, "numProcPerNode": job.ranks,
            "resourcesPerNode": container.get("resources"),
        },
        numNodes="nodes",
        numProcPerNode="ranks_per_node",
    )  # fmt: skip
    return without_nothing(
        {
            "suspend": admission.suspend or None,
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime",
                "name": job.engines.trainjob.runtime,
            },
            "trainer": trainer,
            field: [_patch(field, template)],
        },
        suspend=render.HELD_BACK,
        runtimeRef="engines.trainjob.runtime",
    )  # fmt: skip


def _check_container(job: Job, container: dict[str, Any], field: str) -> None:
    where = {"envFrom": "env_from", "workingDir": "workdir"}
    if pod.uses_rdma(job):
        where["securityContext"] = "container.securityContext, by which RDMA may lock memory"
    for name in container:
        unpatched = name == "securityContext" and field != "runtimePatches"
        if (name not in IN_CONTAINER and name != "workingDir") or unpatched:
            raise SpecError(
                f"{where.get(name, f'container.{name}')}: the container of runtime {job.engines.trainjob.runtime} "
                "cannot be given it; leave engines.trainjob.runtime out, so that the run has a runtime of its own"
            )


def _patch(field: str, template: dict[str, Any]) -> dict[str, Any]:
    """The pods' settings in the words of that version of Trainer. Raises SpecError for those that it has none for."""
    spec, container = template["spec"], template["spec"]["containers"][0]
    for name in spec:
        if name not in PATCHABLE[field] | OF_THE_RUNTIME:
            raise SpecError(
                f"{_said_as(name)}: a TrainJob cannot change {name} of its runtime's pods (by {field}); "
                "leave engines.trainjob.runtime out, so that the run has a runtime of its own"
            )
    changed = {name: value for name, value in spec.items() if name in PATCHABLE[field]}
    kept = {"name": NODE, "volumeMounts": container["volumeMounts"]}
    if "securityContext" in container:
        kept["securityContext"] = container["securityContext"]
    pods = {**changed, "containers": [kept]}
    if field == "podSpecOverrides":
        return {"targetJobs": [{"name": NODE}], **pods}
    if field == "podTemplateOverrides":
        return {"targetJobs": [{"name": NODE}], "metadata": template["metadata"], "spec": pods}
    job = {"name": NODE, "template": {"spec": {"template": {"metadata": template["metadata"], "spec": pods}}}}
    return {"manager": MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}}}


def _said_as(name: str) -> str:
    known = {"priorityClassName": "priority", "schedulerName": "gang", "affinity": "topology"}
    return f"schedule.{known[name]}" if name in known else f"pod.{name}"


def _notes(job: Job) -> Iterator[str]:
    runtime = job.engines.trainjob.runtime
    if not runtime:
        yield from free.forgotten(job)
    else:
        yield (
            f"engines.trainjob.runtime {runtime}: what becomes of a lost pod is for that runtime to say; "
            "without a failurePolicy Kubernetes waits 10 s, then 20, 40, ... before it replaces one"
        )
        if job.failure.grace.seconds > GRACE_OF_KUBERNETES - pod.GRACE_MARGIN:
            yield (
                f"failure.grace {job.failure.grace}: pods of an existing runtime that are deleted have "
                f"{GRACE_OF_KUBERNETES} s, unless the runtime says otherwise"
            )
