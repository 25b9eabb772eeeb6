"""What is known of a run: one object, the same from every engine (``status -o json``)."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional

from allranks.node.cause import Cause, known

PHASES = ("pending", "starting", "running", "idle", "restarting", "succeeded", "failed", "cancelled")
ENDED = frozenset({"succeeded", "failed", "cancelled"})
LONGEST_LINE = 60


@dataclass
class RankStatus:
    """``state`` is waiting, running or ended; ``exit`` is the shell's code (128 + n for signal n).

    While it runs, ``rss`` is its resident memory in bytes and ``rate`` how many collectives it completed a second over
    the last 5 to 10 seconds, each None where that is not known.
    """

    rank: int
    local_rank: int
    pid: Optional[int] = None
    state: str = "waiting"
    exit: Optional[int] = None
    rss: Optional[int] = None
    rate: Optional[float] = None


@dataclass
class NodeStatus:
    """``reason`` says in one line why the node is not running."""

    node: int
    name: str
    address: str = ""
    phase: str = "pending"
    reason: str = ""
    ranks: List[RankStatus] = field(default_factory=list)


@dataclass
class AttemptStatus:
    """When an attempt was started, when all of its ranks ran, and when the last of them was gone."""

    attempt: int
    started: str
    running: str = ""
    ended: str = ""


@dataclass
class Straggler:
    """Others wait in a collective and nothing moves since ``since``; ``rank`` is None where nobody can be named."""

    message: str
    since: str
    rank: Optional[int] = None
    node: Optional[int] = None


@dataclass
class CommandStatus:
    """One command of the gang, counted from 0. ``attempt`` is its first, ``attempts`` how many it made so far.

    ``restarts`` is how many it is allowed. ``phase`` is running (also before its first attempt) or one of ENDED.
    """

    number: int
    argv: List[str]
    restarts: int = 0
    attempt: int = 0
    attempts: int = 0
    phase: str = "running"
    reason: str = ""
    exit_code: Optional[int] = None
    started: str = ""
    ended: str = ""

    @property
    def is_over(self) -> bool:
        return self.phase in ENDED

    @property
    def last_attempt(self) -> int:
        """The newest attempt it made; one less than its first when it made none."""
        return self.attempt + self.attempts - 1

    @property
    def line(self) -> str:
        """As somebody would type it, cut where it is long."""
        line = " ".join(map(shlex.quote, self.argv))
        return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 3] + "..."


@dataclass
class Status:
    """A run. Keys are fixed, more may be added; times are UTC, ISO 8601, or empty.

    ``attempt`` counts from 0. ``restarts`` holds ``used`` and ``allowed``. ``exit_code`` is what ``run``
    exits with once the phase is one of ENDED. ``notes`` are lines a user should see once. ``stays`` says that the gang
    is idle between ``commands`` and ends only when it is ended. ``attempts`` are the newest ones. ``straggler`` is
    whom the others wait for, once that takes seconds, long before it is taken for a hang. ``conditions`` are those of
    the engine's own object that hold, each as ``Type (Reason)``. ``transport`` is the way that NCCL took, in a line,
    ``links`` the same for each pair of nodes, ``traffic`` the bytes of each node since the attempt began; they are
    empty where nothing was seen. ``findings`` are a preflight's: level, where, what, fix, why, nodes.
    """

    name: str
    engine: str
    phase: str = "pending"
    reason: str = ""
    attempt: int = 0
    restarts: Dict[str, int] = field(default_factory=lambda: {"used": 0, "allowed": 0})
    world_size: int = 0
    nodes: List[NodeStatus] = field(default_factory=list)
    transport: str = ""
    causes: List[Cause] = field(default_factory=list)
    started: str = ""
    ended: str = ""
    exit_code: Optional[int] = None
    notes: List[str] = field(default_factory=list)
    stays: bool = False
    commands: List[CommandStatus] = field(default_factory=list)
    attempts: List[AttemptStatus] = field(default_factory=list)
    straggler: Optional[Straggler] = None
    conditions: List[str] = field(default_factory=list)
    links: List[Dict[str, Any]] = field(default_factory=list)
    traffic: List[Dict[str, int]] = field(default_factory=list)
    findings: List[Dict[str, Any]] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.phase in ENDED

    def end(self, phase: str, reason: str, code: int) -> None:
        """Say how it ended, where it could not say so itself: the run, and the command that ran."""
        self.phase, self.reason, self.exit_code, self.straggler = phase, reason, code, None
        for command in self.commands:
            if not command.is_over:
                command.phase, command.reason, command.exit_code = phase, reason, code

    def of_command(self, number: int) -> Status:
        """The same as if this command were all the run there is: its phase, its times, its causes."""
        command = next((command for command in self.commands if command.number == number), None)
        if command is None:
            return self._of_unrecorded(number)
        first, last = command.attempt, command.last_attempt if command.is_over else self.attempt
        found = replace(
            self, name=f"{self.name} ({command.line})", attempt=max(first, last), started=command.started,
            causes=[cause for cause in self.causes if first <= cause.attempt <= max(first, last)],
            attempts=[one for one in self.attempts if first <= one.attempt <= max(first, last)],
        )  # fmt: skip
        if command.is_over:
            found.phase, found.reason = command.phase, command.reason
            found.exit_code, found.ended = command.exit_code, command.ended
        return found

    def _of_unrecorded(self, number: int) -> Status:
        """A command that is about to be recorded, or that only newer ones are told of."""
        newest = self.commands[-1].number if self.commands else -1
        if self.is_over or number > newest:
            return replace(self, phase=self.phase if self.is_over else "pending", causes=[])
        return replace(self, phase="failed", reason=f"the record holds no command {number} any more", causes=[])

    def to_json(self) -> Dict[str, Any]:
        nodes = [{**vars(node), "ranks": [dict(vars(rank)) for rank in node.ranks]} for node in self.nodes]
        causes, commands = [cause.to_json() for cause in self.causes], [dict(vars(c)) for c in self.commands]
        attempts = [dict(vars(one)) for one in self.attempts]
        straggler = dict(vars(self.straggler)) if self.straggler else None
        lists = {"nodes": nodes, "causes": causes, "commands": commands, "attempts": attempts}
        return {**vars(self), **lists, "straggler": straggler}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Status:
        """Raises TypeError or ValueError for what is no record."""
        fields = known(cls, data)
        fields["causes"] = [Cause.from_json(c) for c in fields.get("causes", ())]
        fields["commands"] = [CommandStatus(**known(CommandStatus, c)) for c in fields.get("commands", ())]
        fields["attempts"] = [AttemptStatus(**known(AttemptStatus, one)) for one in fields.get("attempts", ())]
        straggler = fields.get("straggler")
        fields["straggler"] = Straggler(**known(Straggler, straggler)) if straggler else None
        fields["nodes"] = [_node(one) for one in fields.get("nodes", ())]
        return cls(**fields)


def _node(data: Mapping[str, Any]) -> NodeStatus:
    fields = known(NodeStatus, data)
    fields["ranks"] = [RankStatus(**known(RankStatus, rank)) for rank in fields.get("ranks", ())]
    return NodeStatus(**fields)
