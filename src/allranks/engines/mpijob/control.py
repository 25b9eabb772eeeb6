"""The engine mpijob: gangs as MPIJobs of the Kubeflow MPI operator."""

from __future__ import annotations

from allranks.engines.kubernetes.control import KubernetesEngine
from allranks.engines.kubernetes.kinds import MPIJOB
from allranks.engines.kubernetes.pods import Object

INDEX = "training.kubeflow.org/replica-index"


def node_of(pod: Object) -> int | None:
    """The operator numbers a launcher that is a node (0), and the workers after it; another launcher has no number."""
    index = (pod["metadata"].get("labels") or {}).get(INDEX)
    return int(index) if index is not None else None


ENGINE = KubernetesEngine(
    name="mpijob",
    summary="MPIJob of the Kubeflow MPI operator",
    kind=MPIJOB,
    node_of=node_of,
    head=((INDEX, "0"),),
)
