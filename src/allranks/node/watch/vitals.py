"""How the ranks of an attempt do, from what their agents report every second: memory, and collectives a second."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional, Tuple

WINDOW = 5.0
"""Seconds: a rate is that of the last one to two windows."""


class Vitals:
    """``fresh`` is true when something came in since whoever keeps the record last set it to false."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.fresh = False
        self.begin()

    def begin(self) -> None:
        """Nothing of an earlier attempt counts."""
        self._ranks: Dict[int, _Rank] = {}

    def note(self, rank: int, one: Mapping[str, Any]) -> None:
        """One rank of a ``progress``. Raises KeyError, TypeError or ValueError for one that is malformed."""
        completed, rss, now = int(one["completed"]), int(one["rss"]), self._clock()
        known = self._ranks.get(rank)
        if known is None:
            known = self._ranks[rank] = _Rank(now, completed)
        known.note(now, completed, rss)
        self.fresh = True

    def of(self, rank: int) -> Tuple[Optional[int], Optional[float]]:
        """Resident memory in bytes and completed collectives a second; None where it is not known."""
        known = self._ranks.get(rank)
        return (known.rss or None, known.rate) if known else (None, None)


class _Rank:
    """Two moments between which the rate is taken: the older one is one to two windows ago."""

    def __init__(self, now: float, completed: int) -> None:
        self._older = self._newer = self._last = (now, completed)
        self.rss = 0

    def note(self, now: float, completed: int, rss: int) -> None:
        self.rss, self._last = rss, (now, completed)
        if now - self._newer[0] >= WINDOW:
            self._older, self._newer = self._newer, self._last

    @property
    def rate(self) -> Optional[float]:
        """None for a rank that has made no collective: it may have none, or no thread that tells of them."""
        (began, before), (now, completed) = self._older, self._last
        if completed <= 0 or now <= began:
            return None
        return round(max(0, completed - before) / (now - began), 2)
