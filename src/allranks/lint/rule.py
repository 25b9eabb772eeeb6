"""What a rule is: a name, a small function that finds a mistake, why that matters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from allranks.manifest.field import Field
from allranks.manifest.gang import RUNTIMES, Manifest, Role, words
from allranks.manifest.launch import Launch, glimpse
from allranks.manifest.read import GANGS

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
        return glimpse(self.argv)

    @property
    def argv(self) -> tuple[str, ...]:
        """The words of the command that starts ranks."""
        return words(_starter(self))

    @property
    def containers(self) -> list[Field]:
        """The main container of each role; of a TrainJob, which has no roles, what goes into its runtime's."""
        return [*(role.container for role in self.roles), self.spec["trainer"]]

    @cached_property
    def nodes(self) -> tuple[Role, ...]:
        """The roles whose pods run ranks."""
        if self.kind == "MPIJob" and self.role("Worker"):
            return tuple(role for role in self.roles if role.name == "Worker" or self.launcher_is_worker)
        if self.kind in RUNTIMES:
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
RUNTIME = RUNTIMES
JOBSET = ("JobSet",)
EVERY = GANGS
PODS = tuple(kind for kind in GANGS if kind not in TRAIN)
