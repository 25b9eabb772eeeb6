"""Whoever tells of a run is not heard for a while: what there is to say of that, and when it is too long."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from allranks.errors import EngineError, first_line

PATIENCE = 600.0
"""Seconds of silence before who follows a run is let go."""


class Silence:
    """Since the run was heard of last. An error is worth a word after ``said_after`` seconds, no answer after ``slow``.

    ``clock`` is in seconds, monotonic.
    """

    def __init__(
        self, name: str, said_after: float = 0.0, slow: float = PATIENCE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name, self._said_after, self._slow, self._clock = name, said_after, slow, clock
        self._since = clock()
        self._notes: list[str] = []
        self._is_said = False
        self.trouble: EngineError | None = None

    def heard(self) -> None:
        """It is over."""
        if self._is_said:
            self._notes.append(f"{datetime.now():%H:%M:%S}: {self._name} is seen again, after {self.seconds:.0f} s")
        self._is_said, self.trouble, self._since = False, None, self._clock()

    def goes_on(self, trouble: EngineError) -> None:
        """It was asked again, in vain."""
        self.trouble = trouble

    @property
    def seconds(self) -> float:
        """How long it lasts by now."""
        return self._clock() - self._since

    @property
    def is_too_long(self) -> bool:
        """Whether nobody waits for its end any more."""
        return self.seconds > PATIENCE

    @property
    def notes(self) -> Sequence[str]:
        """What there is to say of all silences, in order: that one has begun, and that it is over."""
        if not self._is_said and self.seconds >= (self._said_after if self.trouble else self._slow):
            self._is_said = True
            self._notes.append(self._begun())
        return self._notes

    def _begun(self) -> str:
        now, silent = datetime.now(), self.seconds
        since, until = (now + timedelta(seconds=passed) for passed in (-silent, PATIENCE - silent))
        return (
            f"since {since:%H:%M:%S} {self._name} cannot be seen, and goes on without that; "
            f"tried again until {until:%H:%M:%S}: {first_line(self.trouble) if self.trouble else 'no answer'}"
        )
