"""What only one engine has: the part ``engines`` of a spec, with the options of each."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from allranks.spec.field import Manifest, Part, Text, Word, about
from allranks.spec.names import ObjectName


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
        ObjectName | None, about("A ClusterTrainingRuntime of the torch policy; none: one is made.", "trainjob")
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

    address: Annotated[
        Word | None,
        about("Ray cluster (HOST:PORT of its head); none means RAY_ADDRESS, else one that is started here.", "ray"),
    ] = None
    kuberay: Annotated[bool, about("Whether the plan is a RayService, for KubeRay.", "ray")] = False
    strategy: Annotated[
        Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"],
        about("How Ray places the nodes of a gang on its hosts.", "ray"),
    ] = "PACK"
    route: Annotated[
        Annotated[Text, Field(pattern=r"^/([^/ ]+(/[^/ ]+)*)?$")],
        about("Path below which the service answers on Serve's port.", "ray"),
    ] = "/"
    port: Annotated[int | None, about("Port of Serve's own HTTP; none means the service's.", "ray", ge=1, le=65535)] = (
        None
    )
    redis: Annotated[
        Word | None,
        about("Redis (HOST:PORT) that keeps what the head knows, so that gangs outlive it; for kuberay.", "ray"),
    ] = None
    redis_password: Annotated[Word | None, about("NAME/KEY of a Secret: its password.", "ray")] = None
    upgrade: Annotated[
        Literal["NewCluster", "None"],
        about("What a change of the RayService does: a new cluster beside the old one, or nothing.", "ray"),
    ] = "NewCluster"
    manifest: Manifest = Field(default_factory=dict)


class Engines(Part):
    """What only one engine has; an engine reads its own part alone."""

    mpijob: Annotated[MPIJobOptions, about("Options of this engine.", "mpijob")] = MPIJobOptions()
    trainjob: Annotated[TrainJobOptions, about("Options of this engine.", "trainjob")] = TrainJobOptions()
    pytorchjob: Annotated[PyTorchJobOptions, about("Options of this engine.", "pytorchjob")] = PyTorchJobOptions()
    jobset: Annotated[JobSetOptions, about("Options of this engine.", "jobset")] = JobSetOptions()
    runai: Annotated[RunaiOptions, about("Options of this engine.", "runai")] = RunaiOptions()
    ray: Annotated[RayOptions, about("Options of this engine.", "ray")] = RayOptions()
