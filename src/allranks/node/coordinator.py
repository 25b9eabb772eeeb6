"""Node 0's part: starts the whole gang, ends the whole gang, starts it again, and says why.

No input or output here: agents' messages come in, messages go out through ``Member.send``, time is a parameter.
``listen.py`` is the rim. States: *gathering* until all nodes are ready and idle and there is a command for them,
*running*, *stopping* until the last rank of the attempt is gone, *finishing* once the verdict is sent.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from allranks.node import report
from allranks.node.attempt import Attempt
from allranks.node.cause import Cause, utc
from allranks.node.command import Commands
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
    """How a command ends: phase, reason in one line, and what ``allranks run`` exits with.

    The run ends with it where it is the run's only command, or the verdict is of the ``whole`` gang.
    """

    def __init__(self, phase: str, reason: str, code: int, whole: bool = False) -> None:
        self.phase, self.reason, self.code, self.whole = phase, reason, code, whole


class Coordinator:
    """The gang's state, moved by ``hello``, ``heard``, ``lost``, ``give``, ``stop``, ``cancel`` and ``tick``.

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
        self.commands = Commands(gang)
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
        self.commands.take_over(earlier.commands)
        self.last_attempt = self.commands.last_attempt

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
        self._moved()
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
                self._note(f"the clock of node {member.node} is {member.clock_offset:+.1f} s from node 0's")

    def _note(self, line: str) -> None:
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
        member.ready = bool(message["ready"]) and self.commands.is_of_current(message)
        member.waiting_for = str(message.get("waiting_for", ""))[:200]

    def _on_note(self, member: Member, message: Mapping[str, Any]) -> None:
        self._note(str(message["text"])[:300])

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
            self._succeed()

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

    def give(self, argv: Sequence[str], restarts: int) -> int:
        """Have an idle gang run a command; returns its number. The caller has seen that there is none yet."""
        self.used, self.last_attempt = 0, max(self.last_attempt, self.commands.last_attempt)
        command = self.commands.give(argv, restarts, first=self.last_attempt + 1)
        for member in self.roll.members.values():
            member.ready, member.waiting_for = False, "getting ready for the command"
            self._tell_command(member)
        self._gather()
        return command.number

    def _tell_command(self, member: Member) -> None:
        command = self.commands.current
        assert command is not None
        member.send(
            type="command", command=command.number, argv=command.argv, restarts=command.restarts, first=command.attempt
        )

    def stop(self, reason: str, code: int) -> None:
        """End the command on request, whatever it is doing, and only the command where the gang stays."""
        if self.verdict is None:
            cause = Cause(self._number(), "cancelled", utc(), reason, exit=code)
            self._end_early(cause, Verdict("cancelled", reason, code))

    def cancel(self, reason: str, code: int) -> None:
        """End the run on request, whatever it is doing."""
        if self.verdict is None or not self.verdict.whole:
            cause = Cause(self._number(), "cancelled", utc(), reason, exit=code)
            self._end_early(cause, Verdict("cancelled", reason, code, whole=True))

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
            self._end_early(cause, Verdict("failed", reason, EXIT_DEADLINE, whole=True))
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
        command = self.commands.current
        if self.attempt is None and command and self._was_lost_in(command.attempt):
            self._blame_lost_coordinator()
        elif self.roll.complete and command:
            self._start()
        elif self.roll.complete:
            self._gather_until = now + self.gang.start_timeout  # idle, for as long as it likes
        elif now > self._gather_until:
            self._give_up_gathering()

    def _was_lost_in(self, first: int) -> bool:
        """Whether attempts from ``first`` on were made, and nobody was blamed for the end of the last one."""
        return self.last_attempt >= first and all(cause.attempt != self.last_attempt for cause in self.causes)

    def _blame_lost_coordinator(self) -> None:
        """This coordinator replaces one that died during an attempt: that attempt counts."""
        why = f"node 0: the coordinator {self._how_lost}"
        self.causes.append(Cause(self.last_attempt, "node_lost", utc(), why, node=0, exit=EXIT_UNNAMED))
        self._restart_or_conclude(self.causes[-1])

    def _give_up_gathering(self) -> None:
        awaited = self.roll.who_is_awaited()
        refused = "".join(f"; {who} was refused: {why}" for who, why in self.refusals.items())
        reason = f"the gang was not complete within {self.gang.start_timeout:g} s ({awaited}{refused})"
        missing = self.roll.missing
        cause = Cause(
            self.last_attempt + 1, "start_timeout", utc(), reason,
            node=missing[0] if missing else None, exit=EXIT_NEVER_COMPLETE,
        )  # fmt: skip
        self._end_early(cause, Verdict("failed", reason, EXIT_NEVER_COMPLETE, whole=True))

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
        self.commands.count(self.last_attempt)
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
            self._conclude(self.verdict)
            return
        assert self.attempt is not None
        cause = self.attempt.cause or self.attempt.blame(self.attempt.broken_at)
        self._blame(cause)
        self._restart_or_conclude(cause)

    def _blame(self, cause: Cause) -> None:
        self.causes = [*self.causes[-MAX_CAUSES + 1 :], cause]

    def _restart_or_conclude(self, cause: Cause) -> None:
        allowed = self.commands.allowed
        if self.used < allowed:
            self.used += 1
            self._gather()
            return
        budget = f" (restarts: {self.used} of {allowed} used)" if allowed else ""
        self._conclude(Verdict("failed", cause.message + budget, cause.exit or EXIT_UNNAMED))

    def _gather(self) -> None:
        self.state = "gathering"
        self._gather_until = self._clock() + self.gang.start_timeout
        self._moved()
        self._try_start(self._clock())

    def _succeed(self) -> None:
        """A run's agents see to what its ranks left when they are told the verdict, those of a gang that stays now."""
        self.verdict = Verdict("succeeded", "", 0)
        if self.gang.stays:
            self._stop("")
        else:
            self._conclude(self.verdict)

    def _end_early(self, cause: Cause, verdict: Verdict) -> None:
        """A verdict that is not the ranks' own: stop what runs, then conclude."""
        self._blame(cause)
        self.verdict = verdict
        if self.state == "running":
            self._stop(verdict.reason)
            self._moved()
        elif self.state == "gathering":
            self._conclude(verdict)

    def _conclude(self, verdict: Verdict) -> None:
        """The command is over: with it the run, unless the gang stays."""
        self.commands.end(verdict.phase, verdict.reason, verdict.code)
        if verdict.whole or not self.gang.stays:
            self._finish(verdict)
        else:
            self.verdict = None
            self._gather()

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
