"""Kinds of objects: where the API has them, and what must be installed for those that Kubernetes does not bring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    """One kind of namespaced object. ``operator`` is what brings it; empty for Kubernetes' own."""

    api_version: str
    kind: str
    plural: str
    operator: str = ""
    install: str = ""

    @property
    def group(self) -> str:
        """The API group; empty for the core one."""
        return self.api_version.rpartition("/")[0]

    @property
    def title(self) -> str:
        """``jobsets (jobset.x-k8s.io)``, as a Role names it."""
        return f"{self.plural} ({self.group})" if self.group else self.plural

    def path(self, namespace: str, name: str = "", sub: str = "") -> str:
        """The path of one object, or of all of them in a namespace."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"
        parts = [root, "namespaces", namespace, self.plural, name, sub]
        return "/".join(part for part in parts if part)


POD = Kind("v1", "Pod", "pods")
EVENT = Kind("v1", "Event", "events")
SECRET = Kind("v1", "Secret", "secrets")
CONFIGMAP = Kind("v1", "ConfigMap", "configmaps")
SERVICE = Kind("v1", "Service", "services")
JOB = Kind("batch/v1", "Job", "jobs")
_TRAINER = ("Kubeflow Trainer", "https://www.kubeflow.org/docs/components/trainer/operator-guides/installation/")
JOBSET = Kind(
    "jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets", "JobSet", "https://jobset.sigs.k8s.io/docs/installation/"
)
MPIJOB = Kind(
    "kubeflow.org/v2beta1", "MPIJob", "mpijobs", "the Kubeflow MPI operator", "https://github.com/kubeflow/mpi-operator"
)
TRAINJOB = Kind("trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs", *_TRAINER)
TRAINING_RUNTIME = Kind("trainer.kubeflow.org/v1alpha1", "TrainingRuntime", "trainingruntimes", *_TRAINER)
PYTORCHJOB = Kind(
    "kubeflow.org/v1",
    "PyTorchJob",
    "pytorchjobs",
    "the Kubeflow training operator",
    "https://www.kubeflow.org/docs/components/trainer/legacy-v1/installation/",
)
WORKLOAD = Kind("kueue.x-k8s.io/v1beta1", "Workload", "workloads", "Kueue", "https://kueue.sigs.k8s.io")
POD_GROUP = Kind("scheduling.x-k8s.io/v1alpha1", "PodGroup", "podgroups", "scheduler-plugins")
VOLCANO_GROUP = Kind("scheduling.volcano.sh/v1beta1", "PodGroup", "podgroups", "Volcano")

KNOWN = (
    POD, EVENT, SECRET, CONFIGMAP, SERVICE, JOB, JOBSET, MPIJOB, TRAINJOB, TRAINING_RUNTIME, PYTORCHJOB, WORKLOAD,
    POD_GROUP, VOLCANO_GROUP,
)  # fmt: skip


def kind_of(document: Mapping[str, Any]) -> Kind:
    """The kind that an object says it is; of one that is not known the plural is what Kubernetes mostly makes of it."""
    version, name = str(document["apiVersion"]), str(document["kind"])
    for known in KNOWN:
        if (known.api_version, known.kind) == (version, name):
            return known
    return Kind(version, name, f"{name.lower()}s")
