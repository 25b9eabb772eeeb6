"""The engine pytorchjob: gangs as PyTorchJobs of the Kubeflow training operator."""

from __future__ import annotations

from allranks.engines.kubernetes.control import KubernetesEngine
from allranks.engines.kubernetes.kinds import PYTORCHJOB
from allranks.engines.kubernetes.pods import Object

TYPE, INDEX = "training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index"


def node_of(pod: Object) -> int | None:
    """The master is node 0, the workers follow."""
    labels = pod["metadata"].get("labels") or {}
    if TYPE not in labels or INDEX not in labels:
        return None
    return int(labels[INDEX]) + (0 if labels[TYPE].lower() == "master" else 1)


ENGINE = KubernetesEngine(
    name="pytorchjob",
    summary="PyTorchJob of the Kubeflow training operator",
    kind=PYTORCHJOB,
    node_of=node_of,
    head=((TYPE, "master"), (INDEX, "0")),
    names_wait=True,
)
