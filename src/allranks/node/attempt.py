"""One start of all ranks: who runs, who has ended, and who broke it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Dict, List, Optional, Sequence

from allranks.node.cause import Cause, Secondary
from allranks.node.death import Death


@dataclass
class Attempt:
    """``deaths`` are in the order in which the coordinator heard of them."""

    number: int
    world_size: int
    port: int = 0
    pids: Dict[int, int] = field(default_factory=dict)
    deaths: Dict[int, Death] = field(default_factory=dict)
    cause: Optional[Cause] = None
    broken_at: str = ""

    @property
    def all_started(self) -> bool:
        return len(self.pids) == self.world_size

    @property
    def all_succeeded(self) -> bool:
        return len(self.deaths) == self.world_size and not self.failures

    @property
    def failures(self) -> List[Death]:
        return [death for death in self.deaths.values() if death.failed]

    def ended(self, death: Death) -> None:
        """Take down a rank's end; a second report of the same rank changes nothing."""
        self.deaths.setdefault(death.rank, death)

    def blame(self, at: str, final: Sequence[int] = ()) -> Cause:
        """The cause by order and kind: the first rank that fell by itself and not as another's echo.

        A rank that ended with a ``final`` code knew why, and comes before those that only fell. Where all are echoes of
        a rank that had ended with 0 before, that one left the others alone; where one of them missed a rank that had to
        be ended, it is that one.
        """
        own = [death for death in self.failures if not death.asked] or self.failures
        knowing = (death for death in own if death.exit in final)
        own_fall = (death for death in own if not death.survivor)
        culprit = next(knowing, None) or next(own_fall, None) or self._silent(own) or own[0]
        message = f"rank {culprit.rank} on node {culprit.node}: {culprit.message}"
        code = culprit.exit
        before = list(itertools.takewhile(lambda death: not death.failed, self.deaths.values()))
        if culprit.survivor and before:
            then = f"rank {culprit.rank}: {culprit.message}"
            message, culprit = (
                f"{_those(before)} had ended with 0 while the others still worked; then {then}",
                before[0],
            )
        others = [Secondary(d.rank, d.kind, d.message) for d in own if d is not culprit]
        return Cause(
            attempt=self.number,
            kind=culprit.kind,
            at=at,
            message=message,
            rank=culprit.rank,
            node=culprit.node,
            signal=culprit.signal,
            exit=code,
            tail=culprit.tail,
            log=culprit.log,
            secondary=tuple(others[:MAX_SECONDARY]),
        )

    def _silent(self, own: Sequence[Death]) -> Optional[Death]:
        """The rank that another one gave up waiting for, as a hang; it was there, until its agent ended it."""
        for death in own:
            missed = self.deaths.get(death.missed) if death.missed is not None else None
            if missed is not None and missed.asked:
                why = f"gave no sign of life, and was ended; rank {death.rank} had noticed: {death.message}"
                return replace(missed, kind="hang", message=why, signal=None, exit=death.exit, echo=False)
        return None


def _those(deaths: Sequence[Death]) -> str:
    """``rank 1 on node 0`` and how many more."""
    more = len(deaths) - 1
    also = f" and {more} other rank{'s' if more > 1 else ''}" if more else ""
    return f"rank {deaths[0].rank} on node {deaths[0].node}{also}"


MAX_SECONDARY = 32
