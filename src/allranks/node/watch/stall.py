"""When is it a hang? The coordinator's clock over what all agents report.

Time counts only while some rank waits in a collective and nothing in the gang moves: no sequence number, no rank's
end. So steps of any length, compiles and pauses of the whole gang cost nothing; a pause of one rank in which the others
wait must be shorter than ``hang_timeout``. Silence of a rank counts by itself, from its first missing answer.
Long before that, the status names whom the others wait for: a straggler, found by the same rule, without evidence.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Set, Tuple

from allranks.node.attempt import Attempt
from allranks.node.cause import Cause, utc
from allranks.node.gang import Gang
from allranks.node.rollcall import Member
from allranks.node.status import Straggler
from allranks.node.watch import evidence, hang
from allranks.node.watch.vitals import Vitals

LOOK_SECONDS = 2.0
STRAGGLER_SECONDS = 5.0
GLANCE_INTERVAL = 30.0
"""A gang whose every step takes long is not asked for its stacks in each."""
EXIT_HANG = 1
MESSAGES = ("progress", "account", "looked")


class Stall:
    """Fed by ``heard``; ``tick`` gives the cause once there is a hang and its evidence is kept.

    ``save`` keeps a file of the attempt's evidence on the coordinator's node: attempt, name, text.
    """

    def __init__(
        self, gang: Gang, clock: Callable[[], float] = time.monotonic,
        save: Callable[[int, str, str], Any] = lambda attempt, name, text: None,
    ) -> None:  # fmt: skip
        self._gang, self._clock, self.save = gang, clock, save
        self._attempt: Optional[Attempt] = None
        self.vitals = Vitals(clock)
        self.straggler: Optional[Straggler] = None

    def begin(self, attempt: Attempt) -> None:
        """Nothing of an earlier attempt counts."""
        self._attempt = attempt
        self._sums: Dict[int, Tuple[int, int]] = {}
        self._waiting: Set[int] = set()
        self._silent: Dict[int, float] = {}
        self._ended = 0
        self._still_since = self._clock()
        self._look_until: Optional[float] = None
        self._glance_until: Optional[float] = None
        self._next_glance = 0.0
        self._accounts: Dict[int, hang.Account] = {}
        self._looked: Set[int] = set()
        self.vitals.begin()
        self._moved()

    # ---- what comes in

    def heard(self, member: Member, message: Mapping[str, Any]) -> None:
        """Raises KeyError, TypeError or ValueError for a message that is malformed."""
        if self._attempt is None or message["attempt"] != self._attempt.number:
            return
        if message["type"] == "progress":
            for one in message["ranks"]:
                self._note(self._own(member, int(one["rank"])), one)
        elif message["keep"] != (self._look_until is not None):
            return  # of a glance that a look has overtaken
        elif message["type"] == "account":
            account = hang.Account.from_json(message["account"])
            self._accounts[self._own(member, account.rank)] = account
            if message["account"]["sums"] is not None:
                self._move(account.rank, message["account"]["sums"])
        else:
            self._looked.add(member.node)

    def _own(self, member: Member, rank: int) -> int:
        if rank not in self._gang.ranks_of(member.node):
            raise ValueError(f"node {member.node} has no rank {rank}")
        return rank

    def _note(self, rank: int, one: Mapping[str, Any]) -> None:
        self.vitals.note(rank, one)
        self._move(rank, (one["entered"], one["completed"]))
        (self._waiting.add if one["waits"] else self._waiting.discard)(rank)
        self._silent[rank] = float(one["silent"])

    def _move(self, rank: int, sums: Sequence[Any]) -> None:
        entered, completed = (int(number) for number in sums)
        if self._sums.get(rank) != (entered, completed):
            self._sums[rank] = (entered, completed)
            self._moved()

    def _moved(self) -> None:
        self._still_since = self._clock()
        self._glanced, self.straggler = False, None

    # ---- what follows from it

    def tick(self, members: Mapping[int, Member]) -> Optional[Cause]:
        """Let time pass while the attempt runs."""
        attempt = self._attempt
        if attempt is None:
            return None
        if self._look_until is not None:
            done = self._looked.issuperset(members) or self._clock() > self._look_until
            return self._conclude(attempt) if done else None
        if self._is_suspicious(attempt):
            self._look(attempt, members)
        elif self._glance_until is not None:
            if self._looked.issuperset(members) or self._clock() > self._glance_until:
                self._name_straggler(attempt)
        elif not self._glanced and self._clock() >= max(self._next_glance, self._still_since + self._patience_to_tell):
            self._glanced, self._next_glance = True, self._clock() + GLANCE_INTERVAL
            self._glance_until = self._ask(attempt, members, keep=False)
        return None

    def _is_suspicious(self, attempt: Attempt) -> bool:
        now, timeout = self._clock(), self._gang.hang_timeout
        if len(attempt.deaths) != self._ended or self._waiting <= set(attempt.deaths):
            self._ended = len(attempt.deaths)
            self._moved()
        return self._is_silent(attempt, timeout) or now - self._still_since >= timeout

    @property
    def _patience(self) -> float:
        """Seconds: a rank that others wait for and that has not answered for so long is to blame."""
        return self._gang.hang_timeout / 2

    def _is_silent(self, attempt: Attempt, seconds: float) -> bool:
        return any(silent >= seconds for rank, silent in self._silent.items() if rank not in attempt.deaths)

    @property
    def _patience_to_tell(self) -> float:
        return min(STRAGGLER_SECONDS, self._gang.hang_timeout / 3)

    def _name_straggler(self, attempt: Attempt) -> None:
        """As a look would judge; but nothing is kept, and nothing follows from it."""
        self._glance_until = None
        accounts = [self._account(attempt, rank) for rank in range(self._gang.world_size)]
        finding = hang.judge(accounts, patience=self._patience_to_tell)
        if finding.hung and self._glanced:
            since = utc(time.time() - (self._clock() - self._still_since))
            node = None if finding.rank is None else self._gang.node_of(finding.rank)
            self.straggler = Straggler(finding.message, since, finding.rank, node)
            self.vitals.fresh = True

    def _ask(self, attempt: Attempt, members: Mapping[int, Member], keep: bool) -> float:
        """Have all agents tell of their ranks; returns until when they have time for it."""
        self._accounts, self._looked = {}, set()
        for member in members.values():
            member.send(type="look", attempt=attempt.number, keep=keep)
        return self._clock() + LOOK_SECONDS

    def _look(self, attempt: Attempt, members: Mapping[int, Member]) -> None:
        self._looked_at = self._clock()
        # As it is now: a stopped rank that is woken for its stacks answers what it was asked long ago.
        self._was_silent = self._is_silent(attempt, self._patience)
        self._glance_until = None
        self._look_until = self._ask(attempt, members, keep=True)

    def _conclude(self, attempt: Attempt) -> Optional[Cause]:
        accounts = [self._account(attempt, rank) for rank in range(self._gang.world_size)]
        finding = hang.judge(accounts, patience=self._patience)
        moved = self._still_since > self._looked_at and not self._was_silent
        self._look_until = None
        self._moved()
        self._silent.clear()
        if moved or not finding.hung:
            return None
        self.save(attempt.number, "table.txt", hang.table_text(finding.message, accounts))
        return self._cause(attempt, finding)

    def _account(self, attempt: Attempt, rank: int) -> hang.Account:
        """Of a rank that has ended, or that nobody told of, there are no numbers."""
        if rank in attempt.deaths:
            return hang.Account(rank, self._gang.node_of(rank), state="", ended=True)
        return self._accounts.get(rank) or hang.Account(rank, self._gang.node_of(rank), state="", watched=False)

    def _cause(self, attempt: Attempt, finding: hang.Finding) -> Cause:
        kept = evidence.folder(self._gang, attempt.number)
        rank = finding.rank
        account = self._accounts.get(rank) if rank is not None else None
        return Cause(
            attempt.number, finding.kind, utc(), f"{finding.message} (stacks of all ranks: {kept})",
            rank=rank, node=None if rank is None else self._gang.node_of(rank), exit=EXIT_HANG,
            tail=account.tail if account else (),
            log=self._gang.log_of(attempt.number, rank) if rank is not None else "",
        )  # fmt: skip
