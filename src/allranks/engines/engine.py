"""The contract of an engine: what runs gangs.

Required: ``plan``, ``submit``, ``status``, ``list``, ``cancel``. What only some engines can do is an ability:
a protocol with one method, asked for by ``isinstance``, never by the engine's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from allranks.node.status import Status
from allranks.spec.job import Job


@dataclass(frozen=True)
class Plan:
    """What an engine would create, as a value: what prints is what is submitted.

    ``documents`` print as YAML, in order; ``notes`` say what the engine honours differently or not at all.
    """

    name: str
    engine: str
    documents: tuple[dict[str, Any], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LogLine:
    """One line of one rank, without its line end; ``rank`` is None for what a node's launcher printed."""

    attempt: int
    node: int
    rank: int | None
    text: str


@dataclass(frozen=True)
class LogFilter:
    """Which lines to show: empty sets mean all; ``attempt`` None means the newest (with ``follow``: and those to come)."""

    ranks: frozenset[int] = field(default_factory=frozenset)
    nodes: frozenset[int] = field(default_factory=frozenset)
    attempt: int | None = None


class Engine(Protocol):
    """Where a gang can run."""

    name: str
    summary: str

    def available(self) -> str:
        """Why this engine cannot be used here, or the empty string when it can."""

    def plan(self, job: Job) -> Plan:
        """Render the job. Raises SpecError for a field the engine cannot honour."""

    def submit(self, plan: Plan, *, detach: bool) -> Run:
        """Start the gang. Without ``detach`` the gang ends when this process does. Raises EngineError."""

    def status(self, name: str) -> Status:
        """Raises NotFound, naming the runs that exist."""

    def list(self) -> Sequence[Status]:
        """All runs, newest first."""

    def cancel(self, name: str, *, reason: str) -> Status:
        """End the gang and wait until nothing of it is left; idempotent. Raises NotFound."""


class Run(Protocol):
    """A gang that this process submitted and may let go of."""

    name: str

    def detach(self) -> None:
        """Let the gang outlive this process."""


@runtime_checkable
class CanLog(Protocol):
    """The engine keeps what its ranks print."""

    def logs(self, name: str, wanted: LogFilter, *, follow: bool) -> Iterator[LogLine | None]:
        """Lines in order per rank, merged by arrival. With ``follow``: until the run is over, yielding None when
        there is nothing new for a moment. A last line without a line end is yielded when its attempt is over."""
