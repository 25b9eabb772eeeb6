"""What the user writes for a gang that runs and ends: ``kind: Job``; and what every kind of gang has.

Every field's description says what it is and in which unit; ``schema.describe`` adds its default and the engines
that honour it. Values are frozen: to change a job, make another.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from allranks.spec.argv import split
from allranks.spec.engines import Engines
from allranks.spec.field import (
    CONTAINERS,
    ENV_FROM,
    KUBERNETES,
    NAME,
    Data,
    EnvName,
    HostPath,
    Memory,
    MountPath,
    Part,
    Run,
    Scalar,
    Text,
    Timeout,
    Word,
    about,
    positive,
    whole,
)
from allranks.spec.names import (
    HUGE_PAGES,
    AnnotationKey,
    LabelKey,
    LabelValue,
    NamespaceName,
    ObjectName,
    QueueName,
    ResourceName,
)
from allranks.spec.size import check_all, check_env
from allranks.spec.units import Duration, Quantity


class Resources(Part):
    """What each node of the gang needs."""

    gpus: Annotated[int, about("GPUs of each node, a count.", CONTAINERS, ge=0, le=1024)] = 0
    gpu_resource: Annotated[ResourceName, about("The name under which the cluster offers its GPUs.", CONTAINERS)] = (
        "nvidia.com/gpu"
    )
    cpu: Annotated[
        Annotated[Quantity, AfterValidator(positive)] | None, about("CPU cores of each node (8, 500m).", CONTAINERS)
    ] = None
    memory: Annotated[Memory | None, about("Memory of each node, in bytes (32Gi).", CONTAINERS)] = None
    shm: Annotated[Memory | None, about("Size of /dev/shm, in bytes (16Gi).", CONTAINERS)] = None
    extra: Annotated[
        dict[ResourceName, Annotated[Quantity, AfterValidator(whole)]],
        about("Further resources of each node by name, counts (rdma/rdma: 1).", CONTAINERS),
    ] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits_kubernetes(self) -> Resources:
        if self.gpus and self.gpu_resource in self.extra:
            raise ValueError(f"gpus counts {self.gpu_resource} already; leave it out of 'extra'")
        for name, amount in self.extra.items():
            if name.startswith(HUGE_PAGES):
                self._must_be_pages(name, amount)
        return self

    def _must_be_pages(self, name: str, amount: Quantity) -> None:
        """Kubernetes gives them only in whole pages, and to nobody who asks for neither cores nor memory."""
        try:
            size = Quantity.parse(name.removeprefix(HUGE_PAGES))
        except ValueError:
            size = Quantity(0)
        if not size or amount.nanos % size.nanos:
            raise ValueError(f"{name} is memory in whole pages, such as hugepages-2Mi: 512Mi; found {amount}")
        if self.cpu is None and self.memory is None:
            raise ValueError(f"{name} needs 'cpu' or 'memory' beside it")


class Network(Part):
    """The network between the ranks."""

    rdma: Annotated[
        Literal["auto", "required", "off"],
        about("RDMA for NCCL: auto uses it where it works, required fails without it, off forbids it."),
    ] = "auto"
    annotations: Annotated[
        dict[AnnotationKey, Scalar], about("Annotations of each pod that attach networks to it.", CONTAINERS)
    ] = Field(default_factory=dict)


class Volume(Part):
    """Storage that every node sees under one path: either a claim or a folder of the host."""

    claim: Annotated[ObjectName | None, about("Name of a PersistentVolumeClaim.", CONTAINERS)] = None
    host: Annotated[HostPath | None, about("Folder of the host, an absolute path.", CONTAINERS)] = None
    path: Annotated[MountPath, about("Where the ranks see it, an absolute path.", CONTAINERS)]
    read_only: Annotated[bool, about("Whether writing is refused.", CONTAINERS)] = False

    @model_validator(mode="after")
    def _has_one_source(self) -> Volume:
        if (self.claim is None) == (self.host is None):
            raise ValueError("a volume has either 'claim' or 'host'")
        return self


class Toleration(Part):
    """A taint that the gang's pods put up with."""

    key: Annotated[LabelKey | None, about("The taint's key; none means every key.", KUBERNETES)] = None
    operator: Annotated[Literal["Equal", "Exists"], about("How the key's value is compared.", KUBERNETES)] = "Equal"
    value: Annotated[LabelValue | None, about("The taint's value, for Equal.", KUBERNETES)] = None
    effect: Annotated[
        Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None,
        about("The taint's effect; none means every effect.", KUBERNETES),
    ] = None
    toleration_seconds: Annotated[
        int | None,
        about("How long NoExecute is put up with, in seconds; none means for ever.", KUBERNETES, ge=0, lt=2**63),
    ] = None

    @model_validator(mode="after")
    def _fits_kubernetes(self) -> Toleration:
        if self.operator == "Exists" and self.value:
            raise ValueError("with operator Exists there is no 'value'")
        if self.operator == "Equal" and self.key is None:
            raise ValueError("a toleration of every key has operator: Exists")
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise ValueError("toleration_seconds is for effect: NoExecute alone")
        return self


class Topology(Part):
    """How close together the nodes are placed: by the one or the other of two labels of the cluster's topology."""

    required: Annotated[LabelKey | None, about("Label of the level that all nodes must share.", KUBERNETES)] = None
    preferred: Annotated[LabelKey | None, about("Label of the level that all nodes share if possible.", KUBERNETES)] = (
        None
    )

    @model_validator(mode="after")
    def _has_one_level(self) -> Topology:
        if (self.required is None) == (self.preferred is None):
            raise ValueError("a topology has either 'required' or 'preferred'")
        return self


class Schedule(Part):
    """Where in the cluster the gang runs, and in whose turn."""

    namespace: Annotated[NamespaceName | None, about("Namespace; none means the client's current one.", CONTAINERS)] = (
        None
    )
    queue: Annotated[QueueName | None, about("Queue of the cluster's gang scheduler.", CONTAINERS)] = None
    gang: Annotated[
        Literal["auto", "kueue", "volcano", "coscheduling", "kai", "off"],
        about("Who admits all nodes together; auto takes the one that the cluster has.", KUBERNETES),
    ] = "auto"
    priority: Annotated[ObjectName | None, about("Name of a priority class.", CONTAINERS)] = None
    tolerations: Annotated[
        tuple[Toleration, ...], about("Taints that the pods put up with.", KUBERNETES, strict=False)
    ] = ()
    node_selector: Annotated[dict[LabelKey, LabelValue], about("Labels that every host must have.", CONTAINERS)] = (
        Field(default_factory=dict)
    )
    topology: Annotated[Topology | None, about("How close together the nodes are placed.", KUBERNETES)] = None


Restarts = Annotated[int, about("How many times the whole gang is started again, a count.", ge=0, le=1_000_000)]


class Failure(Part):
    """What happens when a rank or a node is lost, and how long things may take."""

    restarts: Restarts = 3
    final: Annotated[
        tuple[Annotated[int, Field(ge=1, le=255)], ...],
        about("Exit codes of a rank that no restart would mend: the run then ends at once.", strict=False),
    ] = ()
    start_timeout: Annotated[Timeout, about("How long until every node must have reported.")] = Duration.parse("10m")
    hang_timeout: Annotated[Timeout, about("How long ranks may wait in a collective that others never entered.")] = (
        Duration.parse("15m")
    )
    grace: Annotated[Duration, about("Time between SIGTERM and SIGKILL.")] = Duration.parse("30s")
    deadline: Annotated[Timeout | None, about("Longest time for the whole run, restarts included.")] = None
    force_delete: Annotated[
        bool,
        about(
            "Whether the gang may delete its own pods on a lost host by force, and remembers its causes and restarts "
            "when all of its pods go; it has a Role of its own for both.",
            KUBERNETES,
        ),
    ] = False
    clean: Annotated[
        Literal["running", "all", "none"], about("Which pods are deleted when the run is over.", CONTAINERS)
    ] = "running"
    ttl: Annotated[Duration | None, about("How long a finished run is kept; none means for ever.", CONTAINERS)] = None


class Logs(Part):
    """What is kept of what the ranks print."""

    limit: Annotated[
        Memory,
        about(
            "Bytes kept of each rank's output in each attempt, on ray of a service's in all, on each host and where it "
            "was started; beyond, the oldest part is cut away."
        ),
    ] = Quantity.parse("1Gi")


class Gang(Part):
    """What says how large a gang is and what its ranks run."""

    kind: str
    name: Annotated[
        str,
        about("Name of the run: a DNS label (a-z, 0-9 and -, first a letter), at most 40 characters.", pattern=NAME),
    ]
    nodes: Annotated[int, about("How many nodes the gang has, a count.", ge=1, le=100_000)] = 1
    ranks_per_node: Annotated[
        int | None, about("Ranks of each node, a count; none means resources.gpus, else 1.", ge=1, le=4096)
    ] = None
    run: Run | None
    launcher: Annotated[
        Literal["native", "torchrun", "deepspeed", "mpirun", "once"],
        about("What starts the ranks of a node; once starts one process a node."),
    ] = "native"

    @field_validator("launcher", mode="after")
    @classmethod
    def _once_means_one(cls, launcher: str, info: ValidationInfo) -> str:
        ranks = info.data.get("ranks_per_node") or 1
        if launcher == "once" and ranks > 1:
            raise ValueError(f"once starts one process a node, but ranks_per_node is {ranks}; leave that out")
        return launcher


class Surroundings(Part):
    """What the nodes of a gang have around them, and what happens when something breaks."""

    image: Annotated[Word | None, about("Container image.", CONTAINERS)] = None
    workdir: Annotated[
        Annotated[Text, Field(min_length=1)] | None,
        about("Folder the ranks start in; none means the spec file's own (local) or the image's."),
    ] = None
    env: Annotated[dict[EnvName, Scalar], about("Environment of every rank.")] = Field(default_factory=dict)
    env_from: Annotated[
        tuple[Annotated[str, Field(pattern=ENV_FROM)], ...],
        about("Secrets and ConfigMaps whose keys become environment (secret/hub-token).", CONTAINERS, strict=False),
    ] = ()
    resources: Annotated[Resources, about("What each node needs.", CONTAINERS)] = Resources()
    network: Annotated[Network, about("How the ranks reach each other.")] = Network()
    volumes: Annotated[tuple[Volume, ...], about("Storage that every node sees.", CONTAINERS, strict=False)] = ()
    schedule: Annotated[Schedule, about("Where in the cluster, and in whose turn.", CONTAINERS)] = Schedule()
    preflight: Annotated[
        bool, about("Whether nodes and the ways between them are checked before the first rank starts.")
    ] = False
    failure: Annotated[Failure, about("What happens when a rank or a node is lost.")] = Failure()
    logs: Annotated[Logs, about("How much is kept of what the ranks print.", f"local, {KUBERNETES}, runai")] = Logs()
    pod: Annotated[
        Data, about("Merged into every pod's spec (serviceAccountName, imagePullSecrets, securityContext).", KUBERNETES)
    ] = Field(default_factory=dict)
    container: Annotated[
        Data, about("Merged into the ranks' container (securityContext, imagePullPolicy).", KUBERNETES)
    ] = Field(default_factory=dict)
    engines: Annotated[Engines, about("What only one engine has.", CONTAINERS)] = Engines()

    @field_validator("volumes", mode="after")
    @classmethod
    def _paths_differ(cls, volumes: tuple[Volume, ...]) -> tuple[Volume, ...]:
        seen: set[str] = set()
        for volume in volumes:
            if volume.path in seen:
                raise ValueError(f"two volumes have the path {volume.path!r}")
            seen.add(volume.path)
        return volumes

    @field_validator("env", mode="after")
    @classmethod
    def _variables_fit(cls, env: dict[str, str]) -> dict[str, str]:
        check_env(env)
        return env

    @model_validator(mode="after")
    def _fits_a_process(self) -> Surroundings:
        run = getattr(self, "run", None) or ()
        check_all(self.env, [run] if isinstance(run, str) else run)
        return self

    @model_validator(mode="after")
    def _shm_is_one(self) -> Surroundings:
        if self.resources.shm and any(volume.path == "/dev/shm" for volume in self.volumes):
            raise ValueError("resources.shm is mounted at /dev/shm, and so is a volume; leave one of them out")
        return self


class Job(Surroundings, Gang):
    """A gang of ``nodes`` times ``ranks`` processes that run one command and end."""

    kind: Annotated[Literal["Job"], about("What the file describes.")] = "Job"
    run: Annotated[Run, about("Command of every rank: text, split as a shell would, or a list of words.")]

    @property
    def argv(self) -> tuple[str, ...]:
        """The command of every rank, word by word."""
        return split(self.run) if isinstance(self.run, str) else self.run

    @property
    def ranks(self) -> int:
        """Ranks of each node: ``ranks_per_node``, else the GPUs of a node, else 1; under ``once`` always 1."""
        if self.launcher == "once":
            return 1
        return self.ranks_per_node or self.resources.gpus or 1

    @property
    def world_size(self) -> int:
        """All ranks of the gang."""
        return self.nodes * self.ranks

    @property
    def serves(self) -> bool:
        """Whether its rank 0 goes on until it is ended, and has failed when it ends by itself."""
        return False
