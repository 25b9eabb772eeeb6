"""What the cluster is made of: the one place for versions, and where each thing is built from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.cluster.layout import BIN, MANIFESTS

KUBERNETES = "v1.34.4"
LIBRARIES = "v0.34.4"  # the version of k8s.io/api and its siblings that belongs to it


@dataclass(frozen=True)
class Component:
    """A Go module of one version and the binaries that are built from its main packages.

    ``consumer``: it is built from a go.mod of our own, because the module's own has replaces by relative paths, which
    hold only in its repository. ``crds`` and ``webhooks`` are patterns of files in the module; of the CRDs only
    ``crd_versions`` are kept and of the webhooks those of ``hooked`` (all, if empty). ``webhook_port`` is on the
    loopback of the cluster's namespaces.
    """

    name: str
    version: str
    module: str
    packages: dict[str, str]  # binary: package of the module
    consumer: bool = False
    namespace: str = ""
    crds: tuple[str, ...] = ()
    crd_versions: tuple[str, ...] = ()
    webhooks: str = ""
    hooked: tuple[str, ...] = ()
    webhook_port: int = 0
    health: str = ""  # address of the HTTP path that answers 200 when it is well

    def binary(self, name: str = "") -> Path:
        """Where a binary of it is; ``name`` may be left out when it has only one."""
        return BIN / f"{name or next(iter(self.packages))}-{self.version}"

    @property
    def manifests(self) -> Path:
        """Its CRDs and webhooks, as JSON, kept with the binaries."""
        return MANIFESTS / f"{self.name}-{self.version}.json"

    @property
    def built(self) -> bool:
        """Whether nothing of it is missing."""
        wanted = [self.binary(name) for name in self.packages] + ([self.manifests] if self.crds else [])
        return all(path.exists() for path in wanted)


ETCD = Component("etcd", "v3.6.16", "go.etcd.io/etcd/server/v3", {"etcd": ""}, consumer=True)
K8S = Component(
    "kubernetes",
    KUBERNETES,
    "k8s.io/kubernetes",
    {
        name: f"cmd/{name}"
        for name in (
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubelet",
            "kube-proxy",
            "kubectl",
        )
    },
    consumer=True,
)
COREDNS = Component("coredns", "v1.13.1", "github.com/coredns/coredns", {"coredns": "."})
# Only PyTorchJob of the Training Operator: its MPIJob (v1) has the name of the MPI Operator's (v2beta1).
JOBSET = Component(
    "jobset",
    "v0.11.0",
    "sigs.k8s.io/jobset",
    {"jobset": "."},
    namespace="jobset-system",
    crds=("config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",),
    webhooks="config/components/webhook/manifests.yaml",
    hooked=("mjobset.kb.io", "vjobset.kb.io"),  # those of pods fail closed for every pod of the cluster
    webhook_port=9443,
    health=":8081/readyz",
)
MPI_OPERATOR = Component(
    "mpi-operator",
    "v0.8.0",
    "github.com/kubeflow/mpi-operator",
    {"mpi-operator": "./cmd/mpi-operator"},
    namespace="mpi-operator",
    crds=("manifests/base/kubeflow.org_mpijobs.yaml",),
    health=":8080/healthz",  # the port is its own choice
)
TRAINING_OPERATOR = Component(
    "training-operator",
    "v1.9.3",
    "github.com/kubeflow/training-operator",
    {"training-operator": "./cmd/training-operator.v1"},
    namespace="kubeflow",
    crds=("manifests/base/crds/kubeflow.org_pytorchjobs.yaml",),
    webhooks="manifests/base/webhook/manifests.yaml",
    hooked=("validator.pytorchjob.training-operator.kubeflow.org",),
    webhook_port=9445,
    health=":8083/readyz",
)
KUBERAY = Component(
    "kuberay",
    "v1.5.0",
    "github.com/ray-project/kuberay/ray-operator",
    {"kuberay": "."},
    namespace="kuberay-system",
    crds=("config/crd/bases/*.yaml",),
    crd_versions=("v1",),  # v1alpha1 is for users of old; its schemas are a third of what a boot has to take in
    health=":8084/healthz",
)
# All but those of pods and of what is made of pods alone, which would be asked for every one.
# fmt: off
_KUEUED = (
    "clusterqueue", "cohort", "resourceflavor", "workload", "localqueue",
    "job", "mpijob", "pytorchjob", "jobset", "trainjob", "raycluster", "rayjob", "rayservice",
)
# fmt: on
KUEUE = Component(
    "kueue",
    "v0.17.0",
    "sigs.k8s.io/kueue",
    {"kueue": "./cmd/kueue"},
    namespace="kueue-system",
    crds=("config/components/crd/bases/*.yaml",),
    webhooks="config/components/webhook/manifests.yaml",
    hooked=tuple(f"{letter}{kind}.kb.io" for letter in "mv" for kind in _KUEUED),
    webhook_port=9446,
    health=":8085/readyz",
)


def _trainer(version: str) -> Component:
    return Component(
        "trainer",
        version,
        "github.com/kubeflow/trainer/v2",
        {"trainer": "./cmd/trainer-controller-manager"},
        namespace="kubeflow-system",
        crds=("manifests/base/crds/trainer.*.yaml",),
        webhooks="manifests/base/webhook/manifests.yaml",
        webhook_port=9444,
        health=":8082/readyz",
    )


# What may be asked for with TRAINER=: 2.1 has podTemplateOverrides, 2.2 runtimePatches.
TRAINERS = {"2.2": _trainer("v2.2.0"), "2.1": _trainer("v2.1.0")}
# The process that holds a pod's namespaces; its source is pause.go.
PAUSE = Component("pause", "v1", "", {"pause": ""})
CONTROL = (PAUSE, ETCD, K8S, COREDNS)


def operators(trainer: str) -> tuple[Component, ...]:
    """All operators of a cluster, in the order of their start, with that version of the trainer."""
    return (JOBSET, MPI_OPERATOR, TRAINERS[trainer], TRAINING_OPERATOR, KUBERAY, KUEUE)


def needed(trainer: str) -> tuple[Component, ...]:
    """All that a cluster with that version of the trainer needs, in the order of building."""
    return (*CONTROL, *operators(trainer))


def everything() -> tuple[Component, ...]:
    """What a build of all makes, the other trainers last."""
    first, *others = TRAINERS
    return (*needed(first), *(TRAINERS[other] for other in others))
