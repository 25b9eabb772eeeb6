"""Node 0's part: starts the whole gang, ends the whole gang, starts it again, and says why.

No input or output here: agents' messages come in, messages go out through ``Member.send``, time is a parameter.
``listen.py`` is the rim. States: *gathering* until all nodes are ready and idle, *running*, *stopping* until the
last rank of the attempt is gone, *finishing* once the verdict is sent.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime
from typing import Any, Callable, Dict, List, Mapping, Optional

from allranks.node import report
from allranks.node.attempt import Attempt
from allranks.node.cause import Cause, utc
from allranks.node.death import Death
from allranks.node.gang import Gang
from allranks.node.rollcall import Member, RollCall, check_hello
from allranks.node.stall import MESSAGES, Stall
from allranks.node.status import Status

STOP_MARGIN = 15.0
EXPLANATION_WAIT = 1.0
MAX_CAUSES = 50
EXIT_NEVER_COMPLETE = 75
EXIT_DEADLINE = 124
EXIT_UNNAMED = 1


class Verdict:
    """How the run ends: phase, reason in one line, and what ``allranks run`` exits with."""

    def __init__(self, phase: str, reason: str, code: int) -> None:
        self.phase, self.reason, self.code = phase, reason, code


class Coordinator:
    """The gang's state, moved by ``hello``, ``heard``, ``lost``, ``cancel`` and ``tick``.

    ``status`` is always the truth as known here; ``changed`` is called whenever it may have changed.
    ``pick_port`` gives a free port for rank 0's store and raises OSError when there is none. ``earlier`` and
    ``how_lost`` are what the coordinator before this one had recorded and how it ended.
    """

    def __init__(
        self,
        gang: Gang,
        pick_port: Callable[[], int],
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        earlier: Optional[Status] = None,
        how_lost: str = "",
    ) -> None:
        self.gang, self._pick_port, self._changed, self._clock = gang, pick_port, changed, clock
        self.roll = RollCall(gang.nodes, gang.lease, clock)
        self.stall = Stall(gang, clock)
        self.state = "gathering"
        self.attempt: Optional[Attempt] = None
        self.last_attempt, self.used = -1, 0
        self.causes: List[Cause] = []
        self.started, self.ended = time.time(), ""
        self.refusals: Dict[str, str] = {}
        self.notes: List[str] = []
        self._how_lost = how_lost or "was lost"
        if earlier is not None:
            self._take_over(earlier)
        self.verdict: Optional[Verdict] = None
        self._gather_until = clock() + gang.start_timeout
        self._stop_until = 0.0
        self._unexplained: Dict[int, float] = {}
        self._others_told = False

    def _take_over(self, earlier: Status) -> None:
        """Go on with the count and the causes of a coordinator that was killed."""
        self.used, self.causes, self.notes = earlier.restarts["used"], list(earlier.causes), list(earlier.notes)
        if earlier.started:
            self.started = datetime.fromisoformat(earlier.started.replace("Z", "+00:00")).timestamp()
        if earlier.phase in ("starting", "running"):
            self.last_attempt = earlier.attempt
        else:
            self.last_attempt = max([c.attempt for c in self.causes], default=-1)

    # ---- what comes in

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
        joined.ready = bool(hello.get("ready"))
        joined.waiting_for = str(hello.get("waiting_for", ""))[:200]
        older = self.roll.join(joined)
        if older is not None:
            older.close()
        self._remember(hello)
        if older is not None and self.state == "running":
            self._break(self._node_cause(node, "its agent dialled in again, so its ranks are gone"))
        self._note_clock(joined, hello)
        if self.state == "finishing" and node:
            self._tell_verdict(joined)
        self._moved()
        return joined

    def _remember(self, hello: Mapping[str, Any]) -> None:
        """Attempt and budget travel with the agents: the highest count known to any is the gang's."""
        for name in ("attempt", "used"):
            value = hello.get(name)
            if type(value) is int and self.state == "gathering":
                if name == "attempt":
                    self.last_attempt = max(self.last_attempt, value)
                else:
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
        self._moved()

    def heard(self, member: Member, message: Mapping[str, Any]) -> None:
        """Anything from a seated agent. Raises KeyError, TypeError or ValueError for a message that is malformed."""
        member.heard = self._clock()
        kind = message["type"]
        if kind == "beat":
            member.send(type="beat", sent=message["sent"])
            return
        if kind in MESSAGES:
            self.stall.heard(member, message)
            return
        handler = {
            "ready": self._on_ready, "started": self._on_started, "listening": self._on_listening,
            "exit": self._on_exit, "idle": self._on_idle, "bye": self._on_bye, "note": self._on_note,
        }[kind]  # fmt: skip
        handler(member, message)
        self._moved()

    def _on_ready(self, member: Member, message: Mapping[str, Any]) -> None:
        member.ready = bool(message["ready"])
        member.waiting_for = str(message.get("waiting_for", ""))[:200]

    def _on_note(self, member: Member, message: Mapping[str, Any]) -> None:
        self.note(str(message["text"])[:300])

    def _on_started(self, member: Member, message: Mapping[str, Any]) -> None:
        if self.attempt is not None and message["attempt"] == self.attempt.number:
            for rank, pid in message["pids"].items():
                if self.gang.node_of(int(rank)) == member.node:
                    self.attempt.pids[int(rank)] = int(pid)

    def _on_listening(self, member: Member, message: Mapping[str, Any]) -> None:
        if member.node == 0 and self._is_current(message):
            self._tell_others_to_start()

    def _on_exit(self, member: Member, message: Mapping[str, Any]) -> None:
        if self.attempt is None or message["attempt"] != self.attempt.number:
            return
        death = Death.from_json(message["death"])
        if self.gang.node_of(death.rank) != member.node or not 0 <= death.rank < self.gang.world_size:
            raise ValueError(f"node {member.node} has no rank {death.rank}")
        self.attempt.ended(death)
        if self.state != "running":
            return
        if death.failed:
            self._break(None, f"rank {death.rank} on node {death.node} {death.message}")
        elif self.attempt.all_succeeded:
            self._finish(Verdict("succeeded", "", 0))

    def _on_idle(self, member: Member, message: Mapping[str, Any]) -> None:
        if self.attempt is None or message["attempt"] == self.attempt.number:
            member.idle = True

    def _on_bye(self, member: Member, message: Mapping[str, Any]) -> None:
        member.close()
        self.lost(member, f"its agent left ({str(message.get('why', ''))[:100]})", silent=False)

    def lost(self, member: Member, why: str, *, silent: bool) -> None:
        """A seated agent hung up, or was silent for its lease."""
        if not self.roll.lose(member, silent):
            return
        if self.state == "running":
            self._break(self._node_cause(member.node, why))
            if not silent:  # its init may live, and say how it ended
                self._unexplained[member.node] = self._clock() + EXPLANATION_WAIT
        self._moved()

    def cancel(self, reason: str, code: int) -> None:
        """End the run on request, whatever it is doing."""
        if self.verdict is None:
            cause = Cause(self._number(), "cancelled", utc(), reason, exit=code)
            self._end_early(cause, Verdict("cancelled", reason, code))

    def tick(self) -> None:
        """Let time pass: leases, deadlines, starts. Call it at least every tenth of a second."""
        for member in self.roll.silent():
            member.close()
            self.lost(member, f"silent for {self.gang.lease:g} s", silent=True)
        now = self._clock()
        deadline = self.gang.deadline
        if deadline is not None and self.verdict is None and time.time() > self.started + deadline:
            reason = f"the deadline of {deadline:g} s has passed"
            cause = Cause(self._number(), "deadline", utc(), reason, exit=EXIT_DEADLINE)
            self._end_early(cause, Verdict("failed", reason, EXIT_DEADLINE))
        if self.state == "running":
            hang = self.stall.tick(self.roll.members)
            if hang is not None:
                self._break(hang)
                self._moved()
        self._unexplained = {node: until for node, until in self._unexplained.items() if now < until}
        if self.state == "stopping" and ((self._all_idle() and not self._unexplained) or now > self._stop_until):
            self._stopped()
        if self.state == "gathering":
            self._try_start(now)

    # ---- what follows from it

    def _number(self) -> int:
        return self.attempt.number if self.attempt else max(self.last_attempt, 0)

    def _is_current(self, message: Mapping[str, Any]) -> bool:
        return self.state == "running" and self.attempt is not None and message["attempt"] == self.attempt.number

    def _all_idle(self) -> bool:
        return all(member.idle for member in self.roll.members.values())

    def _try_start(self, now: float) -> None:
        if self.last_attempt >= 0 and self.attempt is None and not self._was_blamed(self.last_attempt):
            self._blame_lost_coordinator()
        elif self.roll.complete:
            self._start()
        elif now > self._gather_until:
            self._give_up_gathering()

    def _was_blamed(self, attempt: int) -> bool:
        return any(cause.attempt == attempt for cause in self.causes)

    def _blame_lost_coordinator(self) -> None:
        """This coordinator replaces one that died during an attempt: that attempt counts."""
        why = f"node 0: the coordinator {self._how_lost}"
        self.causes.append(Cause(self.last_attempt, "node_lost", utc(), why, node=0, exit=EXIT_UNNAMED))
        self._spend_or_finish(self.causes[-1])
        if self.verdict is not None:
            self._finish(self.verdict)

    def _give_up_gathering(self) -> None:
        awaited = self.roll.who_is_awaited()
        refused = "".join(f"; {who} was refused: {why}" for who, why in self.refusals.items())
        reason = f"the gang was not complete within {self.gang.start_timeout:g} s ({awaited}{refused})"
        missing = self.roll.missing
        cause = Cause(
            self.last_attempt + 1, "start_timeout", utc(), reason,
            node=missing[0] if missing else None, exit=EXIT_NEVER_COMPLETE,
        )  # fmt: skip
        self._end_early(cause, Verdict("failed", reason, EXIT_NEVER_COMPLETE))

    def _start(self) -> None:
        try:
            port = self._pick_port()
        except OSError as error:
            reason = f"node 0 has no free port for rank 0's store: {error.strerror}"
            cause = Cause(self.last_attempt + 1, "preflight", utc(), reason, node=0, exit=EXIT_UNNAMED)
            self._end_early(cause, Verdict("failed", reason, EXIT_UNNAMED))
            return
        self.roll.lift_fences()
        self.last_attempt += 1
        self.attempt = Attempt(self.last_attempt, self.gang.world_size, port)
        self.stall.begin(self.attempt)
        self.state, self._others_told = "running", False
        for member in self.roll.members.values():
            member.idle = False
        self._send_start(self.roll.members[0])
        if self.gang.nodes == 1:
            self._others_told = True
        self._moved()

    def _send_start(self, member: Member) -> None:
        assert self.attempt is not None
        address = self.gang.coordinator if self.gang.engine == "local" else self._coordinator_address()
        member.send(
            type="start", attempt=self.attempt.number, used=self.used, address=address, port=self.attempt.port,
        )  # fmt: skip

    def _coordinator_address(self) -> str:
        """Node 0's address as the other nodes dialled it."""
        others = [member for node, member in self.roll.members.items() if node]
        return others[0].address if others else "127.0.0.1"

    def _tell_others_to_start(self) -> None:
        """Rank 0's store listens now; a rank that dials sooner backs off for up to 0.75 s."""
        if not self._others_told:
            self._others_told = True
            for node, member in self.roll.members.items():
                if node:
                    self._send_start(member)

    def _node_cause(self, node: int, why: str) -> Cause:
        return Cause(self._number(), "node_lost", utc(), f"node {node}: {why}", node=node, exit=EXIT_UNNAMED)

    def _break(self, cause: Optional[Cause], why: str = "") -> None:
        """End this attempt everywhere. Without ``cause`` the ranks' deaths tell it once all are in."""
        assert self.attempt is not None
        self.attempt.cause = cause
        self.attempt.broken_at = utc()
        self._stop(why or (cause.message if cause else ""))

    def _stop(self, why: str) -> None:
        self.state = "stopping"
        self._stop_until = self._clock() + self.gang.grace + STOP_MARGIN
        for node, member in self.roll.members.items():
            if node and not self._others_told:
                member.idle = True
            else:
                member.send(type="stop", attempt=self._number(), why=why)

    def _stopped(self) -> None:
        """The last rank of the attempt is gone: blame, then start again or finish."""
        for member in list(self.roll.members.values()):
            if not member.idle:
                member.close()
                self.roll.lose(member, silent=True)
        if self.verdict is not None:
            self._finish(self.verdict)
            return
        assert self.attempt is not None
        cause = self.attempt.cause or self.attempt.blame(self.attempt.broken_at)
        self.causes = [*self.causes[-MAX_CAUSES + 1 :], cause]
        self._spend_or_finish(cause)
        if self.verdict is not None:
            self._finish(self.verdict)
            return
        self.state = "gathering"
        self._gather_until = self._clock() + self.gang.start_timeout
        self._moved()
        self._try_start(self._clock())

    def _spend_or_finish(self, cause: Cause) -> None:
        if self.used < self.gang.restarts:
            self.used += 1
            return
        code = cause.exit or EXIT_UNNAMED
        budget = f" (restarts: {self.used} of {self.gang.restarts} used)" if self.gang.restarts else ""
        self.verdict = Verdict("failed", cause.message + budget, code)

    def _end_early(self, cause: Cause, verdict: Verdict) -> None:
        """A verdict that is not the ranks' own: stop what runs, then finish."""
        self.causes.append(cause)
        self.verdict = verdict
        if self.state == "running":
            self._stop(verdict.reason)
            self._moved()
        elif self.state == "gathering":
            self._finish(verdict)

    def _finish(self, verdict: Verdict) -> None:
        """Tell the others first; node 0's own agent ends last (``listen.py``)."""
        self.verdict, self.state, self.ended = verdict, "finishing", utc()
        for node, member in self.roll.members.items():
            if node:
                self._tell_verdict(member)
        self._moved()

    def _tell_verdict(self, member: Member) -> None:
        assert self.verdict is not None
        member.send(type="finish", phase=self.verdict.phase, reason=self.verdict.reason)

    def _moved(self) -> None:
        self._changed()

    # ---- what is told

    @property
    def phase(self) -> str:
        return report.phase(self)

    @property
    def reason(self) -> str:
        return report.reason(self)

    @property
    def status(self) -> Status:
        return report.status(self)
