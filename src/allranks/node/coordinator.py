"""Node 0's part: hears the agents, and moves the gang's course by what they say.

No input or output here: agents' messages come in, messages go out through ``Member.send``. ``course.py`` is what
follows from them, ``listen.py`` the rim.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Callable, Mapping, Optional

from allranks.node import preflight
from allranks.node.cause import KINDS, utc
from allranks.node.course import MAX_CAUSES, Course
from allranks.node.death import Death
from allranks.node.rollcall import Member, check_hello
from allranks.node.verdict import EXIT_UNNAMED
from allranks.node.watch.stall import MESSAGES


class Coordinator(Course):
    """The course, moved by ``hello`` and ``heard`` too."""

    def hello(self, hello: Mapping[str, Any], member: Callable[[int, str], Member]) -> Optional[Member]:
        """Seat an agent; None when another incarnation holds its number and it should ask again.

        Raises Refused when it can never belong.
        """
        gang = self.gang
        expected = {
            "run": gang.run, "nodes": gang.nodes, "ranks_per_node": gang.ranks_per_node, "version": gang.version,
        }  # fmt: skip
        node, incarnation = check_hello(hello, expected)
        self._explain(node, str(hello.get("earlier", ""))[:100])
        if self.roll.holder(node, incarnation):
            return None
        joined = member(node, incarnation)
        joined.ready = bool(hello.get("ready")) and self.commands.is_of_current(hello)
        joined.waiting_for = str(hello.get("waiting_for", ""))[:200]
        older = self.roll.join(joined)
        if older is not None:
            older.close()
        self._remember(hello)
        if older is not None and self.state == "running":
            self._break(self._node_cause(node, "its agent dialled in again, so its ranks are gone"))
        self._note_clock(joined, hello)
        if not self.commands.is_of_current(hello):
            self._tell_command(joined)
        if self.state == "finishing" and node:
            self._tell_verdict(joined)
        self._changed()
        return joined

    def _remember(self, hello: Mapping[str, Any]) -> None:
        """Attempt and budget travel with the agents: the highest count known to any is the gang's."""
        for name in ("attempt", "used"):
            value = hello.get(name)
            if type(value) is int and self.state == "gathering":
                if name == "attempt":
                    self.last_attempt = max(self.last_attempt, value)
                elif self.commands.is_of_current(hello):
                    self.used = max(self.used, value)

    def _explain(self, node: int, how: str) -> None:
        """A new agent was told by its init how the one before it ended; its lost connection said only that it did."""
        if self._unexplained.pop(node, None) is None or not how:
            return
        cause = self.attempt and self.attempt.cause
        if self.attempt and cause and cause.kind == "node_lost" and cause.node == node:
            self.attempt.cause = replace(cause, message=f"node {node}: its agent {how}")

    def _note_clock(self, member: Member, hello: Mapping[str, Any]) -> None:
        clock = hello.get("clock")
        if isinstance(clock, (int, float)) and member.node:
            member.clock_offset = float(clock) - time.time()
            if abs(member.clock_offset) > 1.0:
                self.note(f"the clock of node {member.node} is {member.clock_offset:+.1f} s from node 0's")

    def note(self, line: str) -> None:
        """Keep a line that a user should see once."""
        if line not in self.notes and len(self.notes) < MAX_CAUSES:
            self.notes.append(line)

    def refuse(self, who: str, why: str) -> None:
        """Keep the reason for the status: a gang that never completes must say who was turned away."""
        if len(self.refusals) < MAX_CAUSES:
            self.refusals[who] = why
        self._changed()

    def heard(self, member: Member, message: Mapping[str, Any]) -> None:
        """Anything from a seated agent. Raises KeyError, TypeError or ValueError for a message that is malformed."""
        member.heard = self._clock()
        kind = message["type"]
        if kind == "beat":
            member.send(type="beat", sent=message["sent"])
            return
        if kind in preflight.MESSAGES:
            self.preflight.heard(member.node, message)
            return
        if kind in MESSAGES:
            self.stall.heard(member, message)
            return
        handler = {
            "ready": self._on_ready, "started": self._on_started, "listening": self._on_listening,
            "exit": self._on_exit, "idle": self._on_idle, "bye": self._on_bye, "note": self._on_note,
            "unfit": self._on_unfit, "proof": self._on_proof,
        }[kind]  # fmt: skip
        handler(member, message)
        self._changed()

    def _on_ready(self, member: Member, message: Mapping[str, Any]) -> None:
        member.ready = bool(message["ready"]) and self.commands.is_of_current(message)
        member.waiting_for = str(message.get("waiting_for", ""))[:200]

    def _on_note(self, member: Member, message: Mapping[str, Any]) -> None:
        self.note(str(message["text"])[:300])

    def _on_unfit(self, member: Member, message: Mapping[str, Any]) -> None:
        kind = str(message["kind"])
        self.end_unfit(member.node, kind if kind in KINDS else "preflight", str(message["why"])[:1000])

    def _on_proof(self, member: Member, message: Mapping[str, Any]) -> None:
        why = self.proof.heard(member.node, message)
        if why and self.state == "running":
            self.end_unfit(member.node, "transport", why)

    def _on_started(self, member: Member, message: Mapping[str, Any]) -> None:
        if self.attempt is not None and message["attempt"] == self.attempt.number:
            for rank, pid in message["pids"].items():
                if int(rank) in self.gang.ranks_of(member.node):
                    self.attempt.pids[int(rank)] = int(pid)
            if self.attempt.all_started and not self.attempts[-1].running:
                self.attempts[-1].running = utc()

    def _on_listening(self, member: Member, message: Mapping[str, Any]) -> None:
        if member.node == 0 and self._is_current(message):
            self._tell_others_to_start()

    def _on_exit(self, member: Member, message: Mapping[str, Any]) -> None:
        if self.attempt is None or message["attempt"] != self.attempt.number:
            return
        death = Death.from_json(message["death"])
        if death.rank not in self.gang.ranks_of(member.node):
            raise ValueError(f"node {member.node} has no rank {death.rank}")
        if self.gang.serves and death.rank == 0 and not (death.failed or death.asked):
            death = replace(death, exit=EXIT_UNNAMED, message="ended with 0, and nobody had ended the service")
        self.attempt.ended(death)
        if self.state != "running":
            return
        if death.failed:
            self._break(None, f"rank {death.rank} on node {death.node} {death.message}")
        elif self.attempt.all_succeeded:
            self._succeed()

    def _on_idle(self, member: Member, message: Mapping[str, Any]) -> None:
        if self.attempt is None or message["attempt"] == self.attempt.number:
            member.idle = True

    def _on_bye(self, member: Member, message: Mapping[str, Any]) -> None:
        member.close()
        self.lost(member, str(message.get("why", ""))[:200] or "its agent left", silent=False)
        self._unexplained.pop(member.node, None)

    def _is_current(self, message: Mapping[str, Any]) -> bool:
        return self.state == "running" and self.attempt is not None and message["attempt"] == self.attempt.number
