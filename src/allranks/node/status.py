"""What is known of a run: one object, the same from every engine (``status -o json``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional

from allranks.node.cause import Cause

PHASES = ("pending", "starting", "running", "idle", "restarting", "succeeded", "failed", "cancelled")
ENDED = frozenset({"succeeded", "failed", "cancelled"})


@dataclass
class RankStatus:
    """``state`` is waiting, running or ended; ``exit`` is the shell's code (128 + n for signal n)."""

    rank: int
    local_rank: int
    pid: Optional[int] = None
    state: str = "waiting"
    exit: Optional[int] = None


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
class Status:
    """A run. Keys are fixed, more may be added; times are UTC, ISO 8601, or empty.

    ``attempt`` counts from 0. ``restarts`` holds ``used`` and ``allowed``. ``exit_code`` is what ``run``
    exits with once the phase is one of ENDED. ``notes`` are lines a user should see once.
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

    @property
    def is_over(self) -> bool:
        return self.phase in ENDED

    def to_json(self) -> Dict[str, Any]:
        nodes = [{**vars(node), "ranks": [dict(vars(rank)) for rank in node.ranks]} for node in self.nodes]
        return {**vars(self), "nodes": nodes, "causes": [cause.to_json() for cause in self.causes]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Status:
        fields = dict(data)
        fields["causes"] = [Cause.from_json(c) for c in fields.get("causes", ())]
        fields["nodes"] = [
            NodeStatus(**{**n, "ranks": [RankStatus(**r) for r in n.get("ranks", ())]}) for n in fields.get("nodes", ())
        ]
        return cls(**fields)
