"""The ranks' lines as a person reads them: each with its rank before it, in the rank's colour."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence

from allranks.engines.engine import LogLine

COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)  # ANSI; no red, which is for what went wrong
BATCH_LINES = 2000
BATCH_SECONDS = 0.05

# What could move the cursor, ring or rename the terminal; colours (SGR) are let through.
_UNRULY = re.compile(
    r"\x1b\[(?![0-9;:]*m)[0-?]*[ -/]*[@-~]"  # control sequences but colours
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links and other strings
    r"|\x1b(?!\[[0-9;:]*m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]"
)


class Prefix:
    """Puts ``rank 2 | `` before each line, coloured on a terminal. Of a progress bar only its last state is left."""

    def __init__(self, world_size: int, *, terminal: bool) -> None:
        self._width = len(str(max(world_size - 1, 0)))
        self._colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._known: dict[tuple[int, int | None], str] = {}

    def text(self, lines: Iterable[LogLine]) -> str:
        """All lines in one piece, to be written at once."""
        end = "\x1b[0m\n" if self._colour else "\n"
        return "".join(f"{self._before(line)}{tame(line.text)}{end}" for line in lines)

    def _before(self, line: LogLine) -> str:
        key = (line.node, line.rank)
        if key not in self._known:
            self._known[key] = self._new(line)
        return self._known[key]

    def _new(self, line: LogLine) -> str:
        if line.rank is None:
            return f"node {line.node:<{self._width}} | "
        who = f"rank {line.rank:<{self._width}} | "
        return f"\x1b[{COLOURS[line.rank % len(COLOURS)]}m{who}\x1b[0m" if self._colour else who


def tame(text: str) -> str:
    """What is left of a rank's line where it cannot harm a terminal or the line before it."""
    if text.isprintable():  # most are, and this is ten times quicker
        return text
    return _UNRULY.sub("", text.rstrip("\r").rpartition("\r")[2])


def batches(lines: Iterable[LogLine | None]) -> Iterator[Sequence[LogLine]]:
    """Lines in handfuls: writing each by itself is what would make a talkative gang slow. Empty when nothing is new."""
    batch: list[LogLine] = []
    since = time.monotonic()
    for line in lines:
        if line is not None:
            batch.append(line)
        if line is None or len(batch) >= BATCH_LINES or time.monotonic() - since > BATCH_SECONDS:
            yield batch
            batch, since = [], time.monotonic()
    yield batch
