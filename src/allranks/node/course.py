"""A gang's course: gathered, started, stopped, started again, concluded, and why.

No input or output here: messages go out through ``Member.send``, time is a parameter. States: *gathering* until all
nodes are ready and idle and there is a command for them, *running*, *stopping* until the last rank of the attempt is
gone, *finishing* once the verdict is sent.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

from allranks.node import report, termination
from allranks.node.attempt import Attempt
from allranks.node.cause import Cause, moment, utc
from allranks.node.command import Commands
from allranks.node.gang import Gang
from allranks.node.ledger import Ledger
from allranks.node.preflight import Preflight
from allranks.node.proof import Proof
from allranks.node.rollcall import Member, RollCall
from allranks.node.status import AttemptStatus, CommandStatus, Status
from allranks.node.verdict import EXIT_DEADLINE, EXIT_NEVER_COMPLETE, EXIT_UNFIT, EXIT_UNNAMED, Verdict
from allranks.node.watch.stall import Stall

STOP_MARGIN = 15.0
EXPLANATION_WAIT = 1.0
MAX_CAUSES = 50


class Course:
    """The gang's state, moved by ``lost``, ``give``, ``stop``, ``cancel`` and ``tick``.

    ``status`` is always the truth as known here; ``changed`` is called whenever it may have changed, and ``keep`` when
    an attempt was blamed on somebody, before the next one starts: a coordinator that is killed must leave that behind.
    ``record`` is what all nodes leave behind of it, ``told`` the nodes that have it.
    ``pick_port`` gives a free port for rank 0's store and raises OSError when there is none. ``earlier`` and
    ``how_lost`` are what the coordinator before this one had recorded and how it ended. ``began`` is when the run did,
    by ``clock``, if not now: its deadline goes by that, since a wall clock may be set while it runs.
    """

    def __init__(
        self,
        gang: Gang,
        pick_port: Callable[[], int],
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        earlier: Optional[Status] = None,
        how_lost: str = "",
        began: Optional[float] = None,
    ) -> None:
        self.gang, self._pick_port, self._changed, self._clock = gang, pick_port, changed, clock
        self.keep: Callable[[], object] = lambda: None
        self.roll = RollCall(gang.nodes, gang.lease, clock)
        self.stall = Stall(gang, clock)
        self.proof = Proof(gang)
        self.preflight = Preflight(gang, clock)
        self.commands = Commands(gang)
        self.state = "gathering"
        self.attempt: Optional[Attempt] = None
        self.last_attempt, self.used = -1, 0
        self.causes: List[Cause] = []
        self.attempts: List[AttemptStatus] = []
        self.started, self.ended = time.time(), ""
        self.refusals: Dict[str, str] = {}
        self.notes: List[str] = []
        self.record: Dict[str, Any] = {}
        self.told: Set[int] = set()
        self.is_successor = earlier is not None
        self._how_lost = how_lost or "was lost"
        if earlier is not None:
            self._take_over(earlier)
        self.verdict: Optional[Verdict] = None
        self._deadline = None if gang.deadline is None else (clock() if began is None else began) + gang.deadline
        self._gather_until = clock() + gang.start_timeout
        self._stop_until = 0.0
        self._unexplained: Dict[int, float] = {}
        self._others_told = False
        self._accounted = -1

    def remember(self, known: Ledger) -> None:
        """Go on from what all lost pods of the gang had behind them, and count what is owed."""
        self.used, self.causes = 0 if self.gang.stays else known.used, list(known.causes)
        self.last_attempt = self._accounted = known.attempt
        self.is_successor = known.attempt >= 0
        for cause in known.owed:
            self._blame(cause)
            if not self.gang.stays and self.verdict is None:  # the next command of one that stays has a whole budget
                self._restart_or_conclude(cause)

    @property
    def owed(self) -> List[Cause]:
        """Why the gang must start again, as long as no restart was counted for it."""
        if self.state == "stopping" and self.verdict is None and self.attempt is not None:
            return [self.attempt.cause or self.attempt.blame(self.attempt.broken_at)]
        return []

    def _take_over(self, earlier: Status) -> None:
        """Go on with the count and the causes of a coordinator that was killed."""
        self.used, self.causes, self.notes = earlier.restarts["used"], list(earlier.causes), list(earlier.notes)
        self.attempts = list(earlier.attempts)
        if earlier.started:
            self.started = moment(earlier.started)
        self.commands.take_over(earlier.commands)
        self.last_attempt = self.commands.last_attempt

    # ---- what moves it

    def lost(self, member: Member, why: str, *, silent: bool) -> None:
        """A seated agent hung up, or was silent for its lease."""
        if not self.roll.lose(member, silent):
            return
        if self.state == "running":
            self._break(self._node_cause(member.node, why))
            if not silent:  # its init may live, and say how it ended
                self._unexplained[member.node] = self._clock() + EXPLANATION_WAIT
        self._changed()

    def give(self, argv: Sequence[str], restarts: int) -> CommandStatus:
        """Have an idle gang run a command; returns its record. The caller has seen that there is none yet."""
        self.used, self.last_attempt = 0, max(self.last_attempt, self.commands.last_attempt)
        command = self.commands.give(argv, restarts, first=self.last_attempt + 1)
        for member in self.roll.members.values():
            member.ready, member.waiting_for = False, "getting ready for the command"
            self._tell_command(member)
        self._gather()
        return command

    def _tell_command(self, member: Member) -> None:
        command = self.commands.current
        assert command is not None
        member.send(
            type="command", command=command.number, argv=command.argv, restarts=command.restarts, first=command.attempt
        )

    def stop(self, reason: str, code: int) -> None:
        """End the command on request, whatever it is doing, and only the command where the gang stays."""
        if self.verdict is None:
            self._end_early(Verdict("cancelled", reason, code), "cancelled")

    def cancel(self, reason: str, code: int) -> None:
        """End the run on request, whatever it is doing."""
        if self.verdict is None or not self.verdict.whole:
            self._end_early(Verdict("cancelled", reason, code, whole=True), "cancelled")

    def end_unfit(self, node: int, kind: str, why: str) -> None:
        """End the run: something of a node is not as it must be, and would not be at another attempt."""
        if self.verdict is None:
            self._end_early(Verdict("failed", f"node {node}: {why}", EXIT_UNFIT, whole=True), kind, node)

    def tick(self) -> None:
        """Let time pass: leases, deadlines, starts. Call it at least every tenth of a second."""
        for member in self.roll.silent():
            member.close()
            self.lost(member, f"silent for {self.gang.lease:g} s", silent=True)
        now = self._clock()
        if self._deadline is not None and self.verdict is None and now > self._deadline:
            reason = f"the deadline of {self.gang.deadline:g} s has passed"
            self._end_early(Verdict("failed", reason, EXIT_DEADLINE, whole=True), "deadline")
        if self.state == "running":
            hang = self.stall.tick(self.roll.members)
            if hang is not None:
                self._break(hang)
                self._changed()
        self._unexplained = {node: until for node, until in self._unexplained.items() if now < until}
        if self.state == "stopping" and ((self._all_idle() and not self._unexplained) or now > self._stop_until):
            self._stopped()
        if self.state == "gathering":
            self._try_start(now)

    # ---- what follows from it

    def _number(self) -> int:
        """The attempt that is spoken of: the one that runs or ran, else the command's first."""
        first = self.commands.current.attempt if self.commands.current else 0
        return max(self.attempt.number if self.attempt else self.last_attempt, first)

    def _all_idle(self) -> bool:
        return all(member.idle for member in self.roll.members.values())

    def _try_start(self, now: float) -> None:
        command = self.commands.current
        if self.attempt is None and command and self._was_lost_in(command.attempt):
            self._blame_lost_coordinator()
        elif self.roll.complete and not self.preflight.done:
            self._gather_until = now + self.gang.start_timeout
            self._check()
        elif self.roll.complete and command:
            self._start()
        elif self.roll.complete:
            self._gather_until = now + self.gang.start_timeout  # idle, for as long as it likes
        elif now > self._gather_until:
            self._give_up_gathering()

    def _check(self) -> None:
        """Before the first attempt; what it finds is told, and an error of one node is the end."""
        self.preflight.tick(self.roll.members)
        fatal = self.preflight.fatal
        if self.preflight.done and fatal is not None:
            fix = f"; {fatal.fix}" if fatal.fix else ""
            self.end_unfit(fatal.nodes[0] if fatal.nodes else 0, "preflight", f"{fatal.where}: {fatal.what}{fix}")
        elif self.preflight.done:
            self._changed()

    def _was_lost_in(self, first: int) -> bool:
        """Whether attempts from ``first`` on were made, and nobody was blamed for the end of the last one."""
        known = {self._accounted, *(cause.attempt for cause in self.causes)}
        return self.last_attempt >= first and self.last_attempt not in known

    def _blame_lost_coordinator(self) -> None:
        """This coordinator replaces one that died during an attempt: that attempt counts."""
        self._end_attempt()
        cause = self._node_cause(0, f"the coordinator {self._how_lost}")
        self._blame(cause)
        self._restart_or_conclude(cause)

    def _give_up_gathering(self) -> None:
        awaited = self.roll.who_is_awaited()
        refused = "".join(f"; {who} was refused: {why}" for who, why in self.refusals.items())
        reason = f"the gang was not complete within {self.gang.start_timeout:g} s ({awaited}{refused})"
        verdict = Verdict("failed", reason, EXIT_NEVER_COMPLETE, whole=True)
        self._end_early(verdict, "start_timeout", next(iter(self.roll.missing), None), self.last_attempt + 1)

    def _start(self) -> None:
        try:
            port = self._pick_port()
        except OSError as error:
            reason = f"node 0 has no free port for rank 0's store: {error.strerror}"
            self._end_early(Verdict("failed", reason, EXIT_UNNAMED), "preflight", 0, self.last_attempt + 1)
            return
        self.roll.lift_fences()
        self.last_attempt += 1
        self.attempt = Attempt(self.last_attempt, self.gang.world_size, port)
        self.attempts = [*self.attempts[-MAX_CAUSES + 1 :], AttemptStatus(self.last_attempt, utc())]
        self.commands.count(self.last_attempt)
        self.stall.begin(self.attempt)
        self.proof.begin(self.last_attempt)
        self.state, self._others_told = "running", self.gang.nodes == 1
        for member in self.roll.members.values():
            member.idle = False
        self._send_start(self.roll.members[0])
        self._changed()

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
        self._end_attempt()
        if self.verdict is not None:
            self._conclude(self.verdict)
            return
        assert self.attempt is not None
        cause = self.attempt.cause or self.attempt.blame(self.attempt.broken_at, self.gang.final)
        self._blame(cause)
        self._restart_or_conclude(cause)

    def _end_attempt(self) -> None:
        if self.attempts and not self.attempts[-1].ended:
            self.attempts[-1].ended = utc()

    def _blame(self, cause: Cause) -> None:
        self.causes = [*self.causes[-MAX_CAUSES + 1 :], cause]

    def _restart_or_conclude(self, cause: Cause) -> None:
        allowed = self.commands.allowed
        final = cause.rank is not None and cause.exit in self.gang.final
        if self.used < allowed and not final:
            self.used += 1
            self.state = "gathering"
            self.keep()
            self._gather()
            return
        budget = f" (restarts: {self.used} of {allowed} used{'; no other would mend it' * final})" if allowed else ""
        self._conclude(Verdict("failed", cause.message + budget, cause.exit or EXIT_UNNAMED))

    def _gather(self) -> None:
        self.state = "gathering"
        self._gather_until = self._clock() + self.gang.start_timeout
        self._changed()
        self._try_start(self._clock())

    def _succeed(self) -> None:
        """A run's agents see to what its ranks left when they are told the verdict, those of a gang that stays now."""
        self.verdict = Verdict("succeeded", "", 0)
        if self.gang.stays:
            self._stop("")
        else:
            self._conclude(self.verdict)

    def _end_early(self, verdict: Verdict, kind: str, node: Optional[int] = None, attempt: int = -1) -> None:
        """A verdict that is not the ranks' own: stop what runs, then conclude. ``attempt`` is one yet to begin."""
        if self.commands.current or verdict.phase == "failed":  # else no attempt is ended by it
            number = max(attempt, self._number())
            self._blame(Cause(number, kind, utc(), verdict.reason, node=node, exit=verdict.code))
        self.verdict = verdict
        if self.state == "running":
            self._stop(verdict.reason)
            self._changed()
        elif self.state == "gathering":
            self._conclude(verdict)

    def _conclude(self, verdict: Verdict) -> None:
        """The command is over: with it the run, unless the gang stays."""
        self._end_attempt()
        self.commands.end(verdict.phase, verdict.reason, verdict.code)
        if verdict.whole or not self.gang.stays:
            self._finish(verdict)
        else:
            self.verdict = None
            self._gather()

    def _finish(self, verdict: Verdict) -> None:
        """Tell the others first; node 0's own agent ends last (``listen.py``)."""
        self.verdict, self.state, self.ended = verdict, "finishing", utc()
        self.record = termination.cut(self.status)
        for node, member in self.roll.members.items():
            if node:
                self._tell_verdict(member)
        self._changed()

    def _tell_verdict(self, member: Member) -> None:
        assert self.verdict is not None
        member.send(type="finish", phase=self.verdict.phase, reason=self.verdict.reason, record=self.record)
        self.told.add(member.node)

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
