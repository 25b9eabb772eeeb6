"""What each rank's memory and progress were over time, kept in the run's directory: few lines, whatever the run takes.

One JSON line a moment: ``[seconds since 1970, attempt, [[rank, resident bytes, completed collectives], ...]]``. When
a file has MOST_LINES, every second one goes and the moments are twice as far apart from then on.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Callable, List, Mapping, Sequence

from allranks.node.files import write_whole

FIRST_INTERVAL = 1.0
MOST_LINES = 512


def path_of(state: str, node: int) -> str:
    """The file of one node's ranks."""
    return os.path.join(state, "history", f"node-{node}.jsonl")


class History:
    """Appends to one node's file. ``note`` is told once when that fails; then nothing more is kept."""

    def __init__(self, path: str, note: Callable[[str], None], now: Callable[[], float] = time.time) -> None:
        self._path, self._note, self._now = path, note, now
        self._next, self._interval, self._lines = 0.0, FIRST_INTERVAL, -1
        self._failed = False

    def add(self, attempt: int, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Keep what a ``progress`` says, if it is time to."""
        now = self._now()
        if self._failed or self._next - self._interval <= now < self._next:  # one that was set back counts anew
            return
        self._next = now + self._interval
        living = [[one["rank"], one["rss"], one["completed"]] for one in ranks if one["rss"]]
        line = json.dumps([round(now, 1), attempt, living])
        try:
            self._append(line.replace(" ", "") + "\n")
        except (OSError, ValueError) as error:
            self._failed = True
            self._note(f"the ranks' memory is not kept any longer in {self._path}: {error}")

    def _append(self, line: str) -> None:
        if self._lines < 0:
            self._take_over()
        if self._lines >= MOST_LINES:
            self._thin()
        with open(self._path, "a", encoding="ascii") as file:
            file.write(line)
        self._lines += 1

    def _take_over(self) -> None:
        """Go on with the file of an agent before this one, if there is one."""
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        lines = self._read()
        self._lines = len(lines)
        if len(lines) > 1:
            first, last = (float(json.loads(line)[0]) for line in (lines[0], lines[-1]))
            self._interval = max(FIRST_INTERVAL, (last - first) / len(lines))

    def _thin(self) -> None:
        lines = self._read()[::2]
        write_whole(self._path, "".join(lines))
        self._lines = len(lines)
        self._interval *= 2

    def _read(self) -> List[str]:
        try:
            with open(self._path, encoding="ascii") as file:
                return file.readlines()
        except FileNotFoundError:
            return []
