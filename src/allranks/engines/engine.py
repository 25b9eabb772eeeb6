"""The contract of an engine: what runs gangs.

Required: ``plan``, ``submit``, ``status``, ``list``, ``cancel``. What only some engines can do is an ability:
a protocol with one method, asked for by ``isinstance``, never by the engine's name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from allranks.node.status import Status

if TYPE_CHECKING:  # pydantic costs a tenth of a second: `status`, `logs` and `cancel` never read a spec
    from allranks.node.pod import Pod
    from allranks.spec.job import Job
    from allranks.spec.service import Service


ONLY_REMEMBERED = "the cluster has it no more: this is what this machine saw last"
"""A note of the status of a run that is over and gone from where it ran."""


@dataclass(frozen=True)
class Plan:
    """What an engine would create, as a value: what prints is what is submitted.

    ``documents`` print as YAML, in order; ``notes`` say what the engine honours differently or not at all.
    ``spec`` is the spec it was made from, as YAML, kept beside the run. ``address`` is a service's URL, and from where.
    """

    name: str
    engine: str
    documents: tuple[dict[str, Any], ...]
    notes: tuple[str, ...] = ()
    spec: str = ""
    address: str = ""


OURS = -1


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of one rank, without its line end; ``rank`` is None for what a node's launcher printed.

    ``node`` is OURS where allranks tells of the lines themselves: that they do not come for a while.
    """

    attempt: int
    node: int
    rank: int | None
    text: str


@dataclass(frozen=True)
class LogFilter:
    """Which lines to show: empty sets mean all ranks and nodes.

    ``attempt`` is the only one shown. None means the newest (with ``follow``: and those to come), or all from
    ``since`` on where that is given, or all of ``command`` (of a gang that stays, counted from 0). ``after`` leaves
    out what was printed before that moment, in seconds since 1970, and means all attempts where no other is given.
    """

    ranks: frozenset[int] = field(default_factory=frozenset)
    nodes: frozenset[int] = field(default_factory=frozenset)
    attempt: int | None = None
    since: int | None = None
    command: int | None = None
    after: float | None = None


class Sample(NamedTuple):
    """One rank at one moment: seconds since 1970, attempt, resident bytes, collectives completed since its start."""

    at: float
    attempt: int
    rss: int
    completed: int


@dataclass(frozen=True)
class Evidence:
    """What was kept of the ranks when an attempt hung: where, the sequence table, and each rank's stacks."""

    folder: str
    table: str
    stacks: Mapping[int, str]


@dataclass(frozen=True)
class Kept:
    """What there is of a run beside its status; every text is bounded.

    ``argv`` is its command, ``folder`` where all of it is. ``evidence`` is by attempt, ``tails`` (the last lines of the
    newest attempt) and ``history`` by rank.
    """

    argv: tuple[str, ...] = ()
    folder: str = ""
    evidence: Mapping[int, Evidence] = field(default_factory=dict)
    tails: Mapping[int, Sequence[str]] = field(default_factory=dict)
    history: Mapping[int, Sequence[Sample]] = field(default_factory=dict)


class Engine(Protocol):
    """Where a gang can run."""

    name: str
    summary: str

    def available(self) -> str:
        """Why this engine cannot be used here, or the empty string when it can."""

    def plan(self, job: Job, folder: Path) -> Plan:
        """Render the job. Raises SpecError for a field the engine cannot honour.

        ``folder`` is what relative paths start from: the spec's own folder, or where the command line was typed.
        """

    def submit(self, plan: Plan, *, detach: bool) -> Run:
        """Start the gang. One that this machine holds ends, without ``detach``, when this process does.

        Raises EngineError.
        """

    def status(self, name: str) -> Status:
        """Raises NotFound, naming the runs that exist."""

    def list(self) -> Sequence[Status]:
        """All runs, newest first."""

    def cancel(self, name: str, *, reason: str, code: int = 143) -> Status:
        """End the gang and wait until nothing of it is left; idempotent. Raises NotFound.

        ``code`` is what its ``run`` then exits with.
        """


class Pretend(Protocol):
    """The shape of every engine's ``pretend.py``: what its pods see, for nodes that only pretend to be some."""

    LAUNCHERS: Sequence[str]

    def pods(self, job: Job, addresses: Sequence[str]) -> Sequence[Pod]:
        """One pod for each node's address, node 0's first."""


@runtime_checkable
class CanPretend(Protocol):
    """The engine can give its nodes what another one would give them."""

    def plan_as(self, job: Job, folder: Path, other: str) -> Plan:
        """As ``plan``, but each node sees the variables, files and names of a pod of engine ``other``.

        Its agent reads its place from them as it would there. Raises UsageError, naming the engines that can be
        pretended.
        """


@runtime_checkable
class CanRecall(Protocol):
    """To look for a run costs the engine calls to somebody else, and it recalls where runs were."""

    def recalled(self, name: str) -> str:
        """The engine that a run of this name was last seen on from this machine; empty for none. Nobody is asked."""


@runtime_checkable
class CanServe(Protocol):
    """The engine can run a service, its HTTP included."""

    def plan_service(self, service: Service, folder: Path) -> Plan:
        """Render the service, as ``plan`` does a job. Raises SpecError."""


@runtime_checkable
class CanAnswer(Protocol):
    """The engine knows whether a service can be used that this machine may not reach."""

    def answers(self, plan: Plan) -> bool:
        """Whether all of its gangs take requests by now."""


@runtime_checkable
class CanCheck(Protocol):
    """Somebody else judges the engine's plans, and can be asked beforehand."""

    def check(self, plan: Plan) -> Sequence[str]:
        """Have the plan judged, starting nothing; returns what could not be judged, and why.

        Raises EngineError for the first thing that would be refused.
        """


@runtime_checkable
class NeedsRights(Protocol):
    """Somebody else decides who may use the engine."""

    def role(self, *, force_delete: bool = False) -> dict[str, Any]:
        """The smallest Kubernetes Role with which everything works; for gangs with failure.force_delete too."""


class Run(Protocol):
    """What this process started and may let go of: a gang, or a command of a gang that stays. ``lines`` are its own."""

    name: str
    lines: LogFilter

    def status(self) -> Status:
        """How it is doing; of a command as if it were all there is."""

    def cancel(self, *, reason: str, code: int) -> None:
        """End it. ``code`` is what its ``run`` or ``exec`` then exits with. Raises EngineError."""

    def detach(self) -> None:
        """Let it outlive this process."""

    def wait(self, timeout: float) -> bool:
        """Wait until nothing of it is left, at most ``timeout`` seconds; whether that is so."""


@runtime_checkable
class CanLog(Protocol):
    """The engine keeps what its ranks print."""

    def logs(self, name: str, wanted: LogFilter, *, follow: bool) -> Iterator[LogLine | None]:
        """Yield lines in order per rank, merged by arrival; with ``follow`` until the run is over.

        None means that there is nothing new for a moment. A last line without a line end comes when its attempt is
        over.
        """


@runtime_checkable
class CanTail(Protocol):
    """The engine can tell quickly what its ranks printed last."""

    def tails(self, name: str, ranks: Collection[int]) -> Mapping[int, Sequence[str]]:
        """The last lines of these ranks in the newest attempt, bounded in number and length. Raises NotFound."""


@runtime_checkable
class CanReport(Protocol):
    """The engine keeps what a report of a run is made of."""

    def kept(self, name: str) -> Kept:
        """All that there is by now, also of a run that goes on or never started. Raises NotFound."""


@runtime_checkable
class CanUp(Protocol):
    """The engine can keep a gang that is idle until it is given a command."""

    def up(self, plan: Plan) -> Run:
        """Start the plan's gang, ready for its command but not running it; it outlives this process."""


@runtime_checkable
class CanExec(Protocol):
    """The engine can give commands to a gang that is up."""

    def exec(self, name: str, argv: Sequence[str], *, restarts: int) -> Run:
        """Run a command on all ranks as a new attempt, and again after each failure, ``restarts`` times.

        Raises NotFound, SpecError for a command that could not even start, EngineError for a gang that runs another
        one, is over, or was not started by ``up``.
        """


@runtime_checkable
class CanStop(Protocol):
    """The engine can end a command and leave its gang idle."""

    def stop(self, name: str, *, reason: str, code: int = 143) -> Status:
        """End the command that runs, wait for its end, and return how it ended. Raises NotFound, EngineError."""


@runtime_checkable
class CanShell(Protocol):
    """The engine can open a terminal on one of a gang's nodes."""

    def shell(self, name: str, node: int) -> int:
        """Run a shell on this process's standard streams, on a terminal if they are one; returns its exit code.

        It has the identity of the node and of no rank, and ends when the gang does. Raises NotFound, EngineError, and
        UsageError for a node that the gang does not have.
        """
