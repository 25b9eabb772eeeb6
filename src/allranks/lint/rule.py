"""What a rule is: a name, a small function that finds a mistake, why that matters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from allranks.manifest.field import Field
from allranks.manifest.gang import Manifest, Role
from allranks.manifest.launch import Launch, glimpse

ERROR: Severity = "error"
WARNING: Severity = "warning"
Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Found:
    """A mistake: where, what, and what to write instead."""

    at: Field
    what: str
    fix: str


@dataclass(frozen=True)
class Subject(Manifest):
    """A manifest that is linted. ``trainer`` is the installed Trainer's version, empty where unknown."""

    trainer: tuple[int, ...] = ()
    schemas: Mapping[str, object] = field(default_factory=dict, compare=False)

    @cached_property
    def launch(self) -> Launch:
        """The command of the pod that starts ranks, taken apart as far as it can be."""
        return glimpse(words_of(self))

    @cached_property
    def nodes(self) -> tuple[Role, ...]:
        """The roles whose pods run ranks."""
        if self.kind == "MPIJob" and self.role("Worker"):
            return tuple(role for role in self.roles if role.name == "Worker" or self.launcher_is_worker)
        if self.kind in ("TrainingRuntime", "ClusterTrainingRuntime"):
            return tuple(role for role in self.roles if role.name == "node")
        return self.roles

    @property
    def command(self) -> Field:
        """Where that command stands."""
        container = _starter(self)
        return container["command"] or container["args"] or container


def _starter(subject: Manifest) -> Field:
    if subject.kind == "TrainJob":
        return subject.spec["trainer"]
    if subject.kind == "MPIJob":
        launcher = subject.role("Launcher")
        return launcher.container if launcher else Field(None, "spec", subject.spec.position)
    roles = subject.roles
    return roles[0].container if roles else subject.spec


def words_of(subject: Manifest) -> tuple[str, ...]:
    """The words of the command that starts ranks."""
    container = _starter(subject)
    return tuple(item.text for part in ("command", "args") for item in container[part].items)


Check = Callable[[Subject], Iterator[Found]]


@dataclass(frozen=True)
class Rule:
    """One kind of mistake. ``why`` is what it does to a gang; severity error means that it cannot do what it says."""

    name: str
    severity: Severity
    kinds: tuple[str, ...]
    check: Check
    why: str


MPI = ("MPIJob",)
PYTORCH = ("PyTorchJob",)
TRAIN = ("TrainJob",)
RUNTIME = ("TrainingRuntime", "ClusterTrainingRuntime")
JOBSET = ("JobSet",)
EVERY = ("MPIJob", "PyTorchJob", "TrainJob", "TrainingRuntime", "ClusterTrainingRuntime", "JobSet", "Job")
PODS = ("MPIJob", "PyTorchJob", "TrainingRuntime", "ClusterTrainingRuntime", "JobSet", "Job")
