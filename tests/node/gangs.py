"""Builders for test objects: a gang's plan, and agents that only remember what they were told."""

from __future__ import annotations

from typing import Any

from allranks.node.coordinator import Coordinator
from allranks.node.death import Death
from allranks.node.gang import Gang
from allranks.node.rollcall import Member


def make_gang(**changes: Any) -> Gang:
    """A gang of two nodes with two ranks each and one restart."""
    plan: dict[str, Any] = {
        "run": "g", "engine": "local", "version": "1", "nodes": 2, "ranks_per_node": 2, "launcher": "native",
        "argv": ("true",), "workdir": "/", "coordinator": "127.0.0.1", "state": "/nonexistent", "restarts": 1,
        "start_timeout": 60.0, "grace": 2.0, "lease": 5.0,
    }  # fmt: skip
    return Gang(**{**plan, **changes})


class Clock:
    """Time that moves only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeAgent:
    """One node's agent as the coordinator sees it."""

    def __init__(self, gang: Gang, node: int, incarnation: str = "first") -> None:
        self.gang, self.node, self.incarnation = gang, node, incarnation
        self.told: list[dict[str, Any]] = []
        self.closed = False
        self.member: Member | None = None

    def hello(self, coordinator: Coordinator, **more: Any) -> Member | None:
        hello: dict[str, Any] = {
            "type": "hello", "run": self.gang.run, "nodes": self.gang.nodes, "version": self.gang.version,
            "ranks_per_node": self.gang.ranks_per_node, "node": self.node, "incarnation": self.incarnation,
            "host": f"host-{self.node}", "attempt": -1, "used": 0, "ready": True, **more,
        }  # fmt: skip
        self.member = coordinator.hello(hello, self._member)
        return self.member

    def _member(self, node: int, incarnation: str) -> Member:
        return Member(node, incarnation, f"host-{node}", "10.0.0.1", self._send, self._close)

    def _send(self, **message: Any) -> bool:
        self.told.append(message)
        return True

    def _close(self) -> None:
        self.closed = True

    def says(self, coordinator: Coordinator, kind: str, **fields: Any) -> None:
        assert self.member is not None
        coordinator.heard(self.member, {"type": kind, **fields})

    def last(self, kind: str) -> dict[str, Any] | None:
        """The newest message of that type."""
        return next((m for m in reversed(self.told) if m["type"] == kind), None)


class FakeGang:
    """A coordinator with all its agents, moved by hand."""

    def __init__(self, **changes: Any) -> None:
        self.gang = make_gang(**changes)
        self.clock = Clock()
        self.ports = iter(range(20000, 30000))
        self.coordinator = Coordinator(self.gang, lambda: next(self.ports), clock=self.clock)
        self.agents = [FakeAgent(self.gang, node) for node in range(self.gang.nodes)]

    def gather(self) -> None:
        for agent in self.agents:
            agent.hello(self.coordinator)
        self.coordinator.tick()

    def run(self) -> None:
        """To the point where all ranks run."""
        attempt = self.coordinator.last_attempt
        self.agents[0].says(self.coordinator, "listening", attempt=attempt)
        for agent in self.agents:
            first = agent.node * self.gang.ranks_on_node
            pids = {str(rank): 100 + rank for rank in range(first, first + self.gang.ranks_on_node)}
            agent.says(self.coordinator, "started", attempt=attempt, pids=pids)

    def dies(self, rank: int, **changes: Any) -> None:
        node = self.gang.node_of(rank)
        fields = {"kind": "signal", "message": "killed by SIGKILL", "exit": 137, "signal": "SIGKILL", **changes}
        death = Death(rank=rank, node=node, **fields)
        self.agents[node].says(
            self.coordinator, "exit", attempt=self.coordinator.last_attempt, death=death.to_json()
        )  # fmt: skip

    def idle(self) -> None:
        for agent in self.agents:
            agent.says(self.coordinator, "idle", attempt=self.coordinator.last_attempt)
        self.coordinator.tick()
