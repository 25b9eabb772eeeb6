"""What the engine pytorchjob makes of a job: a PyTorchJob, the master being node 0.

With ExitCode the operator makes a lost pod anew at once and without end, and takes 42, with which an agent says that
the run is given up, as the job's failure. When any pod has ended with 42, or the master has ended, it deletes the pods
that run: so the master closes the run after all others have ended. Seen on training-operator 1.9.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from allranks.engines.kubernetes import pod, render
from allranks.engines.kubernetes.manifest import Explained

if TYPE_CHECKING:
    from allranks.engines.engine import Plan
    from allranks.engines.kubernetes.admission import Admission
    from allranks.engines.kubernetes.cluster import Cluster
    from allranks.spec.job import Job

ENGINE = "pytorchjob"
CONTAINER = "pytorch"
"""The operator finds the ranks' container by this name."""


def plan(job: Job, cluster: Cluster) -> Plan:
    """Render the job. Raises SpecError for what cannot be."""
    namespace = render.namespace_of(job, cluster)
    admission = render.admitted(job, ENGINE, cluster)
    documents = [
        *render.beside(job, ENGINE, namespace, names(job), admission.group, closes=True),
        render.main_object(job, ENGINE, admission, namespace, "kubeflow.org/v1", "PyTorchJob", _spec(job, admission)),
    ]
    return render.plan(job, ENGINE, documents, notes=admission.notes)


def names(job: Job) -> list[str]:
    """What the nodes find each other by, node 0's first: each pod has a service of its own name."""
    return [f"{job.name}-master-0", *(f"{job.name}-worker-{node}" for node in range(job.nodes - 1))]


def _spec(job: Job, admission: Admission) -> dict[str, Any]:
    template = pod.template(job, ENGINE, admission, container=CONTAINER)
    replicas = {"Master": _replica(1, template)}
    if job.nodes > 1:
        replicas["Worker"] = _replica(job.nodes - 1, template)
    return Explained(
        {
            "nprocPerNode": str(job.ranks),
            "runPolicy": render.run_policy(job, admission),
            "pytorchReplicaSpecs": Explained(replicas, Worker="nodes, without the master, which is node 0"),
        },
        nprocPerNode="ranks_per_node",
    )


def _replica(count: int, template: dict[str, Any]) -> dict[str, Any]:
    return Explained(
        {"replicas": count, "restartPolicy": "ExitCode", "template": template},
        restartPolicy="128 and above: a new pod; 42: the agents have given up, and so has the job",
    )
