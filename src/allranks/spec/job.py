"""What the user writes for a gang that runs and ends: ``kind: Job``.

Every field's description says what it is and in which unit; ``schema.describe`` adds its default and the engines
that honour it. Values are frozen: to change a job, make another.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from allranks.spec.argv import check, split
from allranks.spec.units import Duration, Quantity

ALL = "all"
CONTAINERS = "mpijob, trainjob, pytorchjob, jobset, runai, ray"
KUBERNETES = "mpijob, trainjob, pytorchjob, jobset"

NAME = r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$"
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
ENV_FROM = r"^(secret|configmap)/[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
OURS = frozenset(
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"]
)
SMALLEST_MEMORY = Quantity.parse("1Mi")


def about(text: str, engines: str = ALL, **limits: Any) -> Any:
    """Describe a field: what it is, with its unit, and the engines that honour it."""
    return Field(description=text, json_schema_extra={"engines": engines}, **limits)


def _clean_text(text: str) -> str:
    """Refuse what no process can be given: NUL, and code points that UTF-8 cannot carry."""
    if "\0" in text:
        raise ValueError("text has no NUL character")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("text has no lone surrogate")
    return text


def _env_name(name: str) -> str:
    if not ENV_NAME.fullmatch(name):
        raise ValueError("a variable's name has letters, digits and _, and does not start with a digit")
    if name in OURS or name.startswith("ALLRANKS_"):
        raise ValueError("allranks sets this one for every rank; leave it out")
    return name


def _plain_data(value: dict[str, Any]) -> dict[str, Any]:
    """Refuse what JSON cannot carry to an API server."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        _clean_text(text)
        return dict(json.loads(text))
    except (TypeError, RecursionError) as error:
        raise ValueError("a manifest holds text, numbers, true, false, null, lists and mappings") from error
    except ValueError as error:
        raise ValueError("a manifest holds no inf, nan or lone surrogate") from error


def _memory(amount: Quantity) -> Quantity:
    if amount < SMALLEST_MEMORY:
        raise ValueError(f"that is {amount.value.normalize():f} bytes; allowed is 1Mi or more, such as 512Mi or 16Gi")
    return amount


def _positive(amount: Quantity) -> Quantity:
    if not amount:
        raise ValueError("allowed is more than 0")
    return amount


def _whole(amount: Quantity) -> Quantity:
    if not amount.whole:
        raise ValueError("allowed is a whole number")
    return amount


def _some_time(duration: Duration) -> Duration:
    if not duration:
        raise ValueError("allowed is more than 0s")
    return duration


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError("allowed is an absolute path")
    return path


def _one_word(text: str) -> str:
    if not text or text.split() != [text]:
        raise ValueError("allowed is one word, without spaces")
    return text


Text = Annotated[str, AfterValidator(_clean_text)]
Word = Annotated[Text, AfterValidator(_one_word)]
AbsolutePath = Annotated[Text, AfterValidator(_absolute)]
Timeout = Annotated[Duration, AfterValidator(_some_time)]
Memory = Annotated[Quantity, AfterValidator(_memory)]
# Values may be written bare (OMP_NUM_THREADS: 4); the loader keeps the text as it stands in the file.
Scalar = Annotated[Text, WithJsonSchema({"type": ["string", "number", "boolean"]})]
EnvName = Annotated[str, AfterValidator(_env_name)]
Data = Annotated[dict[str, Any], AfterValidator(_plain_data)]
Manifest = Annotated[Data, about("Merged last into what the engine renders.", "its own")]


def _form_of_run(value: object) -> str | None:
    if isinstance(value, str):
        return "text"
    return "list" if isinstance(value, list | tuple) else None


Run = Annotated[
    Annotated[Text, Tag("text")] | Annotated[tuple[Text, ...], Field(strict=False), Tag("list")],
    Discriminator(
        _form_of_run,
        custom_error_type="run_type",
        custom_error_message="allowed is a command as text or as a list of words",
    ),
    AfterValidator(check),
]


class Part(BaseModel):
    """A piece of a spec: unknown fields and wrong types are errors, and it never changes."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class Resources(Part):
    """What each node of the gang needs."""

    gpus: Annotated[int, about("GPUs of each node, a count.", CONTAINERS, ge=0, le=1024)] = 0
    gpu_resource: Annotated[Word, about("The name under which the cluster offers its GPUs.", CONTAINERS)] = (
        "nvidia.com/gpu"
    )
    cpu: Annotated[
        Annotated[Quantity, AfterValidator(_positive)] | None, about("CPU cores of each node (8, 500m).", CONTAINERS)
    ] = None
    memory: Annotated[Memory | None, about("Memory of each node, in bytes (32Gi).", CONTAINERS)] = None
    shm: Annotated[Memory | None, about("Size of /dev/shm, in bytes (16Gi).", CONTAINERS)] = None
    extra: Annotated[
        dict[Word, Annotated[Quantity, AfterValidator(_whole)]],
        about("Further resources of each node by name, counts (rdma/rdma: 1).", CONTAINERS),
    ] = Field(default_factory=dict)


class Network(Part):
    """The network between the ranks."""

    rdma: Annotated[
        Literal["auto", "required", "off"],
        about("RDMA for NCCL: auto uses it where it works, required fails without it, off forbids it."),
    ] = "auto"
    annotations: Annotated[
        dict[Word, Scalar], about("Annotations of each pod that attach networks to it.", CONTAINERS)
    ] = Field(default_factory=dict)


class Volume(Part):
    """Storage that every node sees under one path: either a claim or a folder of the host."""

    claim: Annotated[Word | None, about("Name of a PersistentVolumeClaim.", CONTAINERS)] = None
    host: Annotated[AbsolutePath | None, about("Folder of the host, an absolute path.", CONTAINERS)] = None
    path: Annotated[AbsolutePath, about("Where the ranks see it, an absolute path.", CONTAINERS)]
    read_only: Annotated[bool, about("Whether writing is refused.", CONTAINERS)] = False

    @model_validator(mode="after")
    def _has_one_source(self) -> Volume:
        if (self.claim is None) == (self.host is None):
            raise ValueError("a volume has either 'claim' or 'host'")
        return self


class Toleration(Part):
    """A taint that the gang's pods put up with."""

    key: Annotated[Word | None, about("The taint's key; none means every key.", KUBERNETES)] = None
    operator: Annotated[Literal["Equal", "Exists"], about("How the key's value is compared.", KUBERNETES)] = "Equal"
    value: Annotated[Scalar | None, about("The taint's value, for Equal.", KUBERNETES)] = None
    effect: Annotated[
        Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None,
        about("The taint's effect; none means every effect.", KUBERNETES),
    ] = None
    toleration_seconds: Annotated[
        int | None, about("How long NoExecute is put up with, in seconds; none means for ever.", KUBERNETES, ge=0)
    ] = None


class Topology(Part):
    """How close together the nodes are placed: by the one or the other of two labels of the cluster's topology."""

    required: Annotated[Word | None, about("Label of the level that all nodes must share.", KUBERNETES)] = None
    preferred: Annotated[Word | None, about("Label of the level that all nodes share if possible.", KUBERNETES)] = None

    @model_validator(mode="after")
    def _has_one_level(self) -> Topology:
        if (self.required is None) == (self.preferred is None):
            raise ValueError("a topology has either 'required' or 'preferred'")
        return self


class Schedule(Part):
    """Where in the cluster the gang runs, and in whose turn."""

    namespace: Annotated[Word | None, about("Namespace; none means the client's current one.", CONTAINERS)] = None
    queue: Annotated[Word | None, about("Queue of the cluster's gang scheduler.", CONTAINERS)] = None
    gang: Annotated[
        Literal["auto", "kueue", "volcano", "coscheduling", "kai", "off"],
        about("Who admits all nodes together; auto takes the one that the cluster has.", KUBERNETES),
    ] = "auto"
    priority: Annotated[Word | None, about("Name of a priority class.", CONTAINERS)] = None
    tolerations: Annotated[
        tuple[Toleration, ...], about("Taints that the pods put up with.", KUBERNETES, strict=False)
    ] = ()
    node_selector: Annotated[dict[Word, Scalar], about("Labels that every host must have.", CONTAINERS)] = Field(
        default_factory=dict
    )
    topology: Annotated[Topology | None, about("How close together the nodes are placed.", KUBERNETES)] = None


class Failure(Part):
    """What happens when a rank or a node is lost, and how long things may take."""

    restarts: Annotated[int, about("How many times the whole gang is started again, a count.", ge=0, le=1_000_000)] = 3
    start_timeout: Annotated[Timeout, about("How long until every node must have reported.")] = Duration.parse("10m")
    hang_timeout: Annotated[Timeout, about("How long ranks may wait in a collective that others never entered.")] = (
        Duration.parse("15m")
    )
    grace: Annotated[Duration, about("Time between SIGTERM and SIGKILL.")] = Duration.parse("30s")
    deadline: Annotated[Timeout | None, about("Longest time for the whole run, restarts included.")] = None
    clean: Annotated[
        Literal["running", "all", "none"], about("Which pods are deleted when the run is over.", CONTAINERS)
    ] = "running"
    ttl: Annotated[Duration | None, about("How long a finished run is kept; none means for ever.", CONTAINERS)] = None


class Logs(Part):
    """What is kept of what the ranks print."""

    limit: Annotated[
        Memory,
        about(
            "Bytes kept of each rank's output in each attempt; beyond, the oldest part is cut away.",
            f"local, {KUBERNETES}, runai",
        ),
    ] = Quantity.parse("1Gi")


class MPIJobOptions(Part):
    """Options of the engine mpijob."""

    start: Annotated[
        Literal["agents", "mpirun"],
        about("Who starts the agents: the pods themselves, or mpirun over ssh.", "mpijob"),
    ] = "agents"
    implementation: Annotated[
        Literal["openmpi", "intel", "mpich"],
        about("Which MPI the image has, for start: mpirun.", "mpijob"),
    ] = "openmpi"
    manifest: Manifest = Field(default_factory=dict)


class TrainJobOptions(Part):
    """Options of the engine trainjob."""

    runtime: Annotated[
        Word | None, about("A ClusterTrainingRuntime to use; none means that allranks makes one.", "trainjob")
    ] = None
    manifest: Manifest = Field(default_factory=dict)


class PyTorchJobOptions(Part):
    """Options of the engine pytorchjob."""

    manifest: Manifest = Field(default_factory=dict)


class JobSetOptions(Part):
    """Options of the engine jobset."""

    manifest: Manifest = Field(default_factory=dict)


class RunaiOptions(Part):
    """Options of the engine runai."""

    project: Annotated[Word | None, about("Project; none means the client's current one.", "runai")] = None
    interactive: Annotated[bool, about("Whether the gang counts as interactive work.", "runai")] = False
    manifest: Manifest = Field(default_factory=dict)


class RayOptions(Part):
    """Options of the engine ray."""

    manifest: Manifest = Field(default_factory=dict)


class Engines(Part):
    """What only one engine has; an engine reads its own part alone."""

    mpijob: Annotated[MPIJobOptions, about("Options of this engine.", "mpijob")] = MPIJobOptions()
    trainjob: Annotated[TrainJobOptions, about("Options of this engine.", "trainjob")] = TrainJobOptions()
    pytorchjob: Annotated[PyTorchJobOptions, about("Options of this engine.", "pytorchjob")] = PyTorchJobOptions()
    jobset: Annotated[JobSetOptions, about("Options of this engine.", "jobset")] = JobSetOptions()
    runai: Annotated[RunaiOptions, about("Options of this engine.", "runai")] = RunaiOptions()
    ray: Annotated[RayOptions, about("Options of this engine.", "ray")] = RayOptions()


class Job(Part):
    """A gang of ``nodes`` times ``ranks`` processes that run one command and end."""

    kind: Annotated[Literal["Job"], about("What the file describes.")] = "Job"
    name: Annotated[
        str,
        about("Name of the run: a DNS label (a-z, 0-9 and -, first a letter), at most 40 characters.", pattern=NAME),
    ]
    nodes: Annotated[int, about("How many nodes the gang has, a count.", ge=1, le=100_000)] = 1
    ranks_per_node: Annotated[
        int | None, about("Ranks of each node, a count; none means resources.gpus, else 1.", ge=1, le=4096)
    ] = None
    run: Annotated[Run, about("Command of every rank: text, split as a shell would, or a list of words.")]
    launcher: Annotated[
        Literal["native", "torchrun", "deepspeed", "mpirun", "once"],
        about("What starts the ranks of a node; once starts one process a node."),
    ] = "native"
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

    @field_validator("launcher", mode="after")
    @classmethod
    def _once_means_one(cls, launcher: str, info: ValidationInfo) -> str:
        ranks = info.data.get("ranks_per_node") or 1
        if launcher == "once" and ranks > 1:
            raise ValueError(f"once starts one process a node, but ranks_per_node is {ranks}; leave that out")
        return launcher

    @field_validator("volumes", mode="after")
    @classmethod
    def _paths_differ(cls, volumes: tuple[Volume, ...]) -> tuple[Volume, ...]:
        seen: set[str] = set()
        for volume in volumes:
            if volume.path in seen:
                raise ValueError(f"two volumes have the path {volume.path!r}")
            seen.add(volume.path)
        return volumes

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
