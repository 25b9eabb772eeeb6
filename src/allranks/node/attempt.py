"""One start of all ranks: who runs, who has ended, and who broke it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional

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

    def blame(self, at: str) -> Cause:
        """The cause by order and kind: the first rank that fell by itself and not as another's echo."""
        own = [death for death in self.failures if not death.asked] or self.failures
        culprit = next((death for death in own if not death.survivor), own[0])
        others = [Secondary(d.rank, d.kind, d.message) for d in own if d is not culprit]
        return Cause(
            attempt=self.number,
            kind=culprit.kind,
            at=at,
            message=f"rank {culprit.rank} on node {culprit.node}: {culprit.message}",
            rank=culprit.rank,
            node=culprit.node,
            signal=culprit.signal,
            exit=culprit.exit,
            tail=culprit.tail,
            log=culprit.log,
            secondary=tuple(others[:MAX_SECONDARY]),
        )


MAX_SECONDARY = 32
