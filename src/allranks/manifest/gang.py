"""What the known kinds have in common: roles, each so many pods of one template, and the command of a role."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from allranks.manifest.field import Field
from allranks.spec.units import Quantity

MAIN = {"PyTorchJob": "pytorch", "TrainingRuntime": "node", "ClusterTrainingRuntime": "node"}
RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")
GPU = re.compile(
    r"(nvidia\.com/(gpu|mig-).*|amd\.com/gpu.*|gpu\.intel\.com/.*|habana\.ai/gaudi|huawei\.com/ascend.*|.*/(gpu|vgpu))",
    re.IGNORECASE,
)
RDMA = re.compile(
    r"(rdma/.*|.*/(rdma|hca|roce|ib|infiniband)[\w.-]*|vpc\.amazonaws\.com/efa|openshift\.io/.*|.*rdma.*)",
    re.IGNORECASE,
)
NETWORKS = "k8s.v1.cni.cncf.io/networks"
TRAINER_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"


@dataclass(frozen=True)
class Role:
    """``count`` pods of one template. ``spec`` is what holds it: a replica spec, a replicated job, a Job."""

    name: str
    spec: Field
    count: int
    template: Field
    container: Field

    @property
    def pod(self) -> Field:
        """The pod's spec."""
        return self.template["spec"]

    @property
    def argv(self) -> tuple[str, ...]:
        """The container's command and arguments, as far as they are given."""
        return words(self.container)

    def amount(self, name: str) -> tuple[Quantity | None, Field]:
        """What the container is limited to, else what it requests, of one resource."""
        for part in ("limits", "requests"):
            if (amount := self.container.at("resources", part, name).quantity) is not None:
                return amount, self.container.at("resources", part, name)
        return None, self.container["resources"]

    @property
    def resources(self) -> list[str]:
        """The names of all resources it asks for."""
        held = self.container["resources"]
        return list(dict.fromkeys([*held["limits"].fields, *held["requests"].fields]))

    @property
    def gpu_resource(self) -> str:
        """The name of its GPUs, or nothing."""
        return next((name for name in self.resources if GPU.fullmatch(name)), "")

    @property
    def gpus(self) -> int:
        """GPUs of one pod."""
        amount, _ = self.amount(self.gpu_resource) if self.gpu_resource else (None, None)
        return int(amount) if amount else 0

    @property
    def is_agent(self) -> bool:
        """Whether it runs allranks' agent, which makes the ranks itself, and waits for the others by itself."""
        return any(word.endswith("/agent.pyz") for word in self.argv)

    @property
    def has_rdma(self) -> bool:
        """Whether it asks for a device that carries RDMA."""
        return any(RDMA.fullmatch(name) for name in self.resources)

    @property
    def env(self) -> dict[str, Field]:
        """The entries of the container's environment by name."""
        return {entry["name"].text: entry for entry in self.container["env"].items if entry["name"].text}


@dataclass(frozen=True)
class Manifest:
    """One document. ``beside`` are all documents of its file."""

    source: str
    root: Field
    beside: Sequence[Field] = ()

    @property
    def kind(self) -> str:
        """MPIJob, TrainJob and so on."""
        return self.root["kind"].text

    @property
    def name(self) -> str:
        """The object's name."""
        return self.root.at("metadata", "name").text

    @property
    def spec(self) -> Field:
        """The object's spec."""
        return self.root["spec"]

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """Its pods by role; of a TrainJob none, because its runtime has them."""
        return tuple(_roles(self))

    def role(self, name: str) -> Role | None:
        """The role of that name."""
        return next((role for role in self.roles if role.name == name), None)

    @cached_property
    def runtime(self) -> Manifest | None:
        """The runtime of a TrainJob, where it is in the same file."""
        name = self.spec.at("runtimeRef", "name").text
        kind = self.spec.at("runtimeRef", "kind").text or "ClusterTrainingRuntime"
        for document in self.beside:
            if document["kind"].text == kind and document.at("metadata", "name").text == name:
                return Manifest(self.source, document, self.beside)
        return None

    @property
    def slots(self) -> int:
        """``slotsPerWorker``, 1 where nothing is given."""
        return max(self.spec["slotsPerWorker"].number or 1, 1)

    @property
    def launcher_is_worker(self) -> bool:
        """Whether an MPIJob's launcher holds ranks too."""
        return self.spec["runLauncherAsWorker"].is_true


def placed_words(container: Field) -> tuple[Field, ...]:
    """``command`` and ``args`` as one list, each word with its place."""
    return (*container["command"].items, *container["args"].items)


def words(container: Field) -> tuple[str, ...]:
    """The same as text alone; what is no word is left out."""
    return tuple(one.text for one in placed_words(container) if not one.is_mapping and not one.is_list)


def _roles(manifest: Manifest) -> Iterator[Role]:
    spec = manifest.spec
    if manifest.kind in ("MPIJob", "PyTorchJob"):
        replicas = spec["mpiReplicaSpecs" if manifest.kind == "MPIJob" else "pytorchReplicaSpecs"]
        for name, held in replicas.fields.items():
            yield _role(manifest, name, held, held["replicas"], held["template"])
    elif manifest.kind == "Job":
        yield _role(manifest, "job", manifest.root, spec["parallelism"], spec["template"])
    elif manifest.kind in ("JobSet", *RUNTIMES):
        jobs = spec["replicatedJobs"] if manifest.kind == "JobSet" else spec.at("template", "spec", "replicatedJobs")
        for job in jobs.items:
            inner = job.at("template", "spec")
            role = _role(manifest, job["name"].text, job, inner["parallelism"], inner["template"])
            copies = job["replicas"].number
            yield replace(role, spec=job, count=role.count * (1 if copies is None else max(copies, 0)))


def _role(manifest: Manifest, name: str, spec: Field, count: Field, template: Field) -> Role:
    containers = template.at("spec", "containers")
    wanted = MAIN.get(manifest.kind, "")
    main = next((one for one in containers.items if one["name"].text == wanted), containers[0])
    return Role(name, spec, max(1 if count.number is None else count.number, 0), template, main)


def is_trainer(role: Role) -> bool:
    """Whether a TrainJob's own image, command and environment go into this role of its runtime."""
    labels = role.spec.at("template", "metadata", "labels")
    return labels[TRAINER_STEP].text == "trainer"
