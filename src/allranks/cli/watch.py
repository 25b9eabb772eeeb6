"""Watch a run without taking part in it: a panel that fills the terminal, or plain lines where there is none."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace

import click

from allranks.cli import words
from allranks.cli.news import News
from allranks.cli.panel import MOST_RANKS, panel
from allranks.cli.plain import fit, one_line
from allranks.cli.screen import size
from allranks.engines.engine import CanTail, Engine
from allranks.engines.silence import Silence
from allranks.errors import EngineError, NotFound
from allranks.node.status import Status

REFRESH, POLL = 0.5, 0.1
_OTHER_SCREEN, _OWN_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_CAUSE_LINES = 8


def watch(engine: Engine, name: str) -> Status:
    """Show how a run stands until it is over; return how it ended."""
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        return _on_terminal(engine, name)
    return _in_lines(engine, name)


class _Look:
    """Looks at a run again and again; while its engine does not answer, the status is the last one with a note."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine, self._name = engine, name
        self._last: Status | None = None
        self._silence = Silence(name)

    def __call__(self) -> Status:
        """Raises EngineError where that was so from the first, or is so for PATIENCE seconds."""
        try:
            self._last = self._engine.status(self._name)
            self._silence.heard()
        except EngineError as error:
            if self._last is None or isinstance(error, NotFound) or self._silence.is_too_long:
                raise
            self._silence.goes_on(error)
        return replace(self._last, notes=[*self._last.notes, *self._silence.notes])


def _in_lines(engine: Engine, name: str) -> Status:
    news, look = News(), _Look(engine, name)
    while not (status := look()).is_over:
        for line in news.of(status, time.monotonic()):
            click.echo(line)
        time.sleep(REFRESH)
    return status


def _on_terminal(engine: Engine, name: str) -> Status:
    """On the terminal's other screen, so that what was there before comes back. Raises OSError when it is lost."""
    sys.stdout.write(_OTHER_SCREEN)
    look = _Look(engine, name)
    try:
        while not (status := look()).is_over:
            last = _last_lines(engine, status)
            drawn = _draw(status, last)
            due = time.monotonic() + REFRESH
            while time.monotonic() < due and size() == drawn:
                time.sleep(POLL)
        return status
    finally:
        _leave()


def _leave() -> None:
    try:
        sys.stdout.write(_OWN_SCREEN)
        sys.stdout.flush()
    except OSError:
        pass  # the terminal has gone, and with it what would have to be mended


def _last_lines(engine: Engine, status: Status) -> dict[int, str]:
    if status.world_size > MOST_RANKS or not isinstance(engine, CanTail):
        return {}
    found = engine.tails(status.name, range(status.world_size))
    return {rank: lines[-1] for rank, lines in found.items() if lines}


def _draw(status: Status, last: dict[int, str]) -> tuple[int, int]:
    """Fill the terminal; return the size that it had."""
    width, height = drawn = size()
    lines = panel(status, last, width, height)
    if status.causes and height - len(lines) > 2:
        lines += ["", *(fit(line, width) for line in _cause(status))]
    sys.stdout.write("\x1b[H" + "\n".join(f"{line}\x1b[K" for line in lines[:height]) + "\x1b[J")
    sys.stdout.flush()
    return drawn


def _cause(status: Status) -> list[str]:
    cause = status.causes[-1]
    head = f"attempt {cause.attempt} ({words.local_time(cause.at)}): {one_line(cause.message)}"
    return [head, *(f"  | {one_line(line)}" for line in cause.tail[-_CAUSE_LINES:])]
