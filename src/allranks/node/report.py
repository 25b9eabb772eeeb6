"""The gang's state as everyone is told it: phase, reason, nodes, ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from allranks.node.cause import utc
from allranks.node.status import NodeStatus, RankStatus, Status

if TYPE_CHECKING:
    from allranks.node.course import Course


def phase(c: Course) -> str:
    """One of status.PHASES."""
    if c.state == "finishing" and c.verdict is not None:
        return c.verdict.phase
    if c.state == "running" and c.attempt is not None:
        if c.attempt.all_started:
            return "running"
        return "restarting" if c.used else "starting"
    if c.state == "stopping" and c.verdict is None:
        return "restarting" if c.used < c.commands.allowed else "running"
    if c.state == "stopping":
        return "running"
    command = c.commands.current
    if command is None:
        return "idle" if c.roll.complete else "pending"
    return "restarting" if c.last_attempt >= command.attempt else "pending"


def reason(c: Course) -> str:
    """Why it is not running, in one line."""
    if c.verdict is not None:
        return c.verdict.reason
    if phase(c) == "idle":
        return c.commands.told()
    if c.state == "gathering" and c.roll.complete and not c.preflight.done:
        return c.preflight.awaited
    if c.state == "gathering":
        return c.roll.who_is_awaited()
    if c.state == "stopping":
        return "waiting for the last ranks of the broken attempt to end"
    if phase(c) in ("starting", "restarting") and c.attempt is not None:
        return f"{len(c.attempt.pids)} of {c.gang.world_size} ranks started"
    return ""


def status(c: Course) -> Status:
    """All of it; the lists are copies."""
    over = c.state == "finishing" and c.verdict is not None
    return Status(
        name=c.gang.run,
        engine=c.gang.engine,
        phase=phase(c),
        reason=reason(c),
        attempt=max(c.last_attempt, 0),
        restarts={"used": c.used, "allowed": c.commands.allowed},
        world_size=c.gang.world_size,
        nodes=[_node_status(c, node) for node in range(c.gang.nodes)],
        transport=c.proof.summary,
        links=c.proof.links,
        traffic=c.proof.traffic,
        findings=[one.to_json() for one in c.preflight.findings] if c.preflight.done else [],
        causes=list(c.causes),
        started=utc(c.started),
        ended=c.ended,
        exit_code=c.verdict.code if over and c.verdict else None,
        notes=list(c.notes),
        stays=c.gang.stays,
        commands=[replace(command) for command in c.commands.records],
        attempts=[replace(one) for one in c.attempts],
        straggler=c.stall.straggler if c.state == "running" else None,
    )


def _node_status(c: Course, node: int) -> NodeStatus:
    member = c.roll.members.get(node)
    ranks = [_rank_status(c, rank, local) for local, rank in enumerate(c.gang.ranks_of(node))]
    known = c.gang.addresses[node] if node < len(c.gang.addresses) else ""
    name = c.gang.name_of(node)
    if c.state == "finishing":
        return NodeStatus(node, name, known, "ended", "", ranks)
    if member is None:
        return NodeStatus(node, name, known, "pending", "its agent has not dialled in", ranks)
    phase = "running" if any(rank.state == "running" for rank in ranks) else "ready" if member.ready else "starting"
    return NodeStatus(node, member.host or name, known or member.address, phase, member.waiting_for, ranks)


def _rank_status(c: Course, rank: int, local_rank: int) -> RankStatus:
    found = RankStatus(rank, local_rank)
    if c.attempt is None:
        return found
    found.pid = c.attempt.pids.get(rank) if c.state in ("running", "stopping") or rank in c.attempt.deaths else None
    death = c.attempt.deaths.get(rank)
    if death is not None:
        found.state, found.exit = "ended", death.exit
    elif found.pid is not None and c.state in ("running", "stopping"):
        found.state = "running"
        found.rss, found.rate = c.stall.vitals.of(rank)
    return found
