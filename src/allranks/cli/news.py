"""What changed since the last look at a run, as lines for a person: pure, told the time."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.cli import words
from allranks.node.status import Status

PATIENCE = 1.0
"""Seconds of waiting before it is said what is awaited."""

PAUSE = 5.0
"""Seconds until it is said again, if it has changed: a large gang would fill a screen with its progress."""


class News:
    """Turns one status after another into lines, each said once."""

    def __init__(self) -> None:
        self._broke = -1
        self._notes: set[str] = set()
        self._attempt = -1
        self._waiting: str | None = None
        self._say_at = 0.0
        self._straggler = ""

    def of(self, status: Status, now: float) -> list[str]:
        """What is new in this status; ``now`` is a monotonic time in seconds."""
        found = [*self._new_notes(status), *self._breaks(status), *self._starts(status), *self._waits(status, now)]
        return [*found, *self._straggles(status)]

    def _new_notes(self, status: Status) -> Iterator[str]:
        new = [note for note in status.notes if note not in self._notes]
        self._notes.update(new)
        yield from (f"note: {note}" for note in new)

    def _breaks(self, status: Status) -> Iterator[str]:
        """Attempts that broke, once the run goes on from them: what ends a run is told at its end."""
        if status.is_over:
            return
        for cause in status.causes:
            if cause.attempt > self._broke and (status.phase == "restarting" or status.attempt > cause.attempt):
                self._broke = cause.attempt
                yield words.broken(cause, status)

    def _starts(self, status: Status) -> Iterator[str]:
        if status.phase == "running" and status.attempt > self._attempt:
            self._attempt = status.attempt
            size = f"{words.counted(status.world_size, 'rank')} on {words.counted(len(status.nodes), 'node')}"
            yield f"attempt {status.attempt}: {size} running"

    def _straggles(self, status: Status) -> Iterator[str]:
        since = status.straggler.since if status.straggler else ""
        if since and since != self._straggler:
            yield words.straggling(status)
        self._straggler = since or self._straggler

    def _waits(self, status: Status, now: float) -> Iterator[str]:
        """Say what is awaited once it takes long, and again whenever it changes."""
        if status.phase not in ("pending", "starting", "restarting"):
            self._waiting = None
            return
        if self._waiting is None:
            self._waiting, self._say_at = "", now + PATIENCE
        text = words.awaited(status)
        if now >= self._say_at and text != self._waiting:
            self._waiting, self._say_at = text, now + PAUSE
            yield f"{status.phase}: {text}"
