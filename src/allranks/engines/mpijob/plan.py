"""What the engine mpijob makes of a job: an MPIJob, in one of two shapes.

``start: agents``: the agents are the pods' own commands, the launcher's pod is node 0 and holds ranks, and no image
needs an sshd for it. With ``launcher: mpirun`` they have mpirun start the ranks. ``start: mpirun``: the workers run
sshd, and the launcher's pod, which holds no rank, has mpirun start one agent on each of them. Seen on mpi-operator
0.8.0 with Open MPI 4.1.4.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from allranks.engines.kubernetes import delivery, pod, render
from allranks.engines.kubernetes.manifest import Explained, without_nothing
from allranks.errors import SpecError
from allranks.node.launch.sshd import KEYS

if TYPE_CHECKING:
    from allranks.engines.engine import Plan
    from allranks.engines.kubernetes.admission import Admission
    from allranks.engines.kubernetes.cluster import Cluster
    from allranks.spec.job import Job

ENGINE = "mpijob"
IMPLEMENTATIONS = {"openmpi": "OpenMPI", "intel": "Intel", "mpich": "MPICH"}
LAUNCHER_RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}}
"""Of a launcher's pod that holds no rank: mpirun, and one ssh for each node."""
SSHD = ("python3", f"{delivery.CODE}/{delivery.AGENT}", "sshd")
OVER_SSH = ("python3", f"{delivery.CODE}/{delivery.AGENT}", "over-ssh", f"{delivery.CODE}/{delivery.PLAN}")


def plan(job: Job, cluster: Cluster) -> Plan:
    """Render the job. Raises SpecError for what cannot be."""
    namespace, options = render.namespace_of(job, cluster), job.engines.mpijob
    admission = render.admitted(job, ENGINE, cluster)
    over_ssh = options.start == "mpirun"
    if over_ssh and job.launcher == "mpirun":
        raise SpecError(
            "engines.mpijob.start: mpirun has mpirun start the agents; with launcher: mpirun the agents start mpirun. "
            "Leave start out, or choose another launcher"
        )
    names = _workers(job, job.nodes) if over_ssh else [f"{job.name}-launcher.{job.name}", *_workers(job, job.nodes - 1)]
    spec = _over_ssh(job, admission) if over_ssh else _agents(job, admission)
    documents = [
        *render.beside(job, ENGINE, namespace, names, admission.group),
        render.main_object(job, ENGINE, admission, namespace, "kubeflow.org/v2beta1", "MPIJob", spec),
    ]
    return render.plan(job, ENGINE, documents, notes=[*admission.notes, *_notes(job, over_ssh)])


def _workers(job: Job, count: int) -> list[str]:
    return [f"{job.name}-worker-{number}.{job.name}" for number in range(count)]


def _agents(job: Job, admission: Admission) -> dict[str, Any]:
    template = pod.template(job, ENGINE, admission)
    once = job.failure.restarts == 0
    launcher = Explained(
        {"replicas": 1, "restartPolicy": "Never" if once else "OnFailure", "template": template},
        replicas="node 0 of the gang",
        restartPolicy="failure.restarts is 0" if once else "",
    )
    return Explained(
        {
            "slotsPerWorker": job.ranks,
            "runLauncherAsWorker": True,
            "runPolicy": _run_policy(job, admission, 0 if once else 1),
            "mpiReplicaSpecs": {"Launcher": launcher, **_replicas_of_workers(template, job.nodes - 1)},
        },
        slotsPerWorker="ranks_per_node",
        runLauncherAsWorker="the launcher's pod is a node like the others",
    )


def _replicas_of_workers(template: dict[str, Any], count: int) -> dict[str, Any]:
    """With Never the operator would not replace a worker that failed."""
    worker = Explained(
        {"replicas": count, "restartPolicy": "OnFailure", "template": template},
        restartPolicy="with Never, the operator's default, a worker that failed is never replaced",
    )
    return {"Worker": worker} if count else {}


def _run_policy(job: Job, admission: Admission, backoff: int) -> dict[str, Any]:
    made = render.run_policy(job, admission, backoffLimit=backoff)
    made.why["backoffLimit"] = "of the launcher's pod alone: with more, a run that is given up ends only 43 s later"
    return made


def _over_ssh(job: Job, admission: Admission) -> dict[str, Any]:
    worker = pod.template(job, ENGINE, admission, command=SSHD)
    launcher = pod.template(job, ENGINE, admission, command=OVER_SSH)
    container = launcher["spec"]["containers"][0]
    container["resources"] = dict(LAUNCHER_RESOURCES)
    return Explained(
        without_nothing(
            {
                "slotsPerWorker": job.ranks,
                "sshAuthMountPath": KEYS if _is_not_root(job) else "",
                "mpiImplementation": IMPLEMENTATIONS[job.engines.mpijob.implementation],
                "runPolicy": _run_policy(job, admission, 1),
                "mpiReplicaSpecs": {
                    "Launcher": {"replicas": 1, "restartPolicy": "OnFailure", "template": launcher},
                    **_replicas_of_workers(worker, job.nodes),
                },
            }
        ),
        slotsPerWorker="ranks_per_node",
        sshAuthMountPath="the operator's own, /root/.ssh, is for root; sshd listens on a port that others may have",
        mpiImplementation="engines.mpijob.implementation",
    )


def _is_not_root(job: Job) -> bool:
    """Whether the spec says that its containers are another user's; the container's word wins over the pod's."""
    said = {**job.pod.get("securityContext", {}), **job.container.get("securityContext", {})}
    user = said.get("runAsUser")
    return bool(user) if user is not None else bool(said.get("runAsNonRoot"))


def _notes(job: Job, over_ssh: bool) -> Iterator[str]:
    if over_ssh:
        yield "engines.mpijob.start mpirun: the image needs mpirun, ssh and sshd, and one more pod runs mpirun"
    elif job.engines.mpijob.implementation != "openmpi":
        yield "engines.mpijob.implementation: only used with start: mpirun"
    if job.failure.restarts > 1:
        yield (
            "failure.restarts: the launcher's pod can be replaced once; when it is lost again, the operator fails the "
            "MPIJob, whatever restarts are left"
        )
    if job.failure.ttl is not None:
        yield "failure.ttl: the operator removes the launcher's pod after it, and keeps the MPIJob"
