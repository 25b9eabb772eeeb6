"""Follow a run to its end: its lines, its fortunes, and what Ctrl-C and SIGTERM ask for."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from allranks.cli import words
from allranks.cli.lines import batches
from allranks.cli.news import News
from allranks.cli.screen import Screen, screen
from allranks.engines.engine import CanLog, Engine, LogFilter, Run
from allranks.errors import EngineError

if TYPE_CHECKING:
    from types import FrameType

    from allranks.node.status import Status

QUESTION = "\n[d]etach and let it go on, or [c]ancel? "
REASONS = {signal.SIGINT: "cancelled by Ctrl-C", signal.SIGTERM: "the command line got SIGTERM"}
CODES = {signal.SIGINT: 130}
LAST_WAIT = 20.0
"""Seconds for a run's supervisor to be gone once the run is over."""


def follow(engine: Engine, run: Run) -> int:
    """Show a run until it is over or let go of; return the exit code for it."""
    if not isinstance(engine, CanLog):
        raise EngineError(f"engine {engine.name} keeps no logs to follow; see: allranks status {run.name}")
    status = engine.status(run.name)
    with _signals() as received:
        shown = screen(status.world_size)
        try:
            ended = _Following(engine, run, shown, received).to_the_end(engine)
        finally:
            shown.close()
        if ended is None:
            return _let_go(run)
        run.wait(LAST_WAIT)
    for line in words.ending(ended):
        click.echo(line if line.startswith("  |") else f"allranks: {line}", err=True)
    return 70 if ended.exit_code is None else ended.exit_code


def _let_go(run: Run) -> int:
    run.detach()
    click.echo(f"allranks: {run.name} goes on; see: allranks logs -f {run.name}, allranks cancel {run.name}", err=True)
    return 0


class _Following:
    def __init__(self, engine: Engine, run: Run, shown: Screen, received: list[signal.Signals]) -> None:
        self._engine, self._run, self._screen, self._received = engine, run, shown, received
        self._cancel: _Cancel | None = None

    def to_the_end(self, logs: CanLog) -> Status | None:
        """Return how the run ended, or None when it is to go on without us."""
        news = News()
        for lines in batches(logs.logs(self._run.name, LogFilter(since=0), follow=True)):
            status = self._engine.status(self._run.name)
            self._screen.show(lines, news.of(status, time.monotonic()), status)
            if self._received and not self._go_on(self._received.pop(0)):
                return None
            if self._cancel:
                self._cancel.check()
        return self._engine.status(self._run.name)

    def _go_on(self, number: signal.Signals) -> bool:
        """Answer a signal; False lets go of the run."""
        if self._cancel:
            if number == signal.SIGINT:
                raise KeyboardInterrupt  # somebody will not wait for the grace; the supervisor ends it without us
            return True
        if number == signal.SIGINT and self._wants_to_detach():
            return False
        self._cancel = _Cancel(self._engine, self._run.name, number)
        self._screen.show([], [f"ending {self._run.name} ..."], self._engine.status(self._run.name))
        return True

    def _wants_to_detach(self) -> bool:
        try:
            with _interruptible():
                while True:
                    answer = self._screen.ask(QUESTION).lower()
                    if answer in ("d", "c"):
                        return answer == "d"
        except (KeyboardInterrupt, EOFError):
            return False


class _Cancel(threading.Thread):
    """Cancels beside the loop, so that what ranks say while they end is still shown."""

    def __init__(self, engine: Engine, name: str, number: signal.Signals) -> None:
        super().__init__(daemon=True)
        self._engine, self._name, self._number = engine, name, number
        self._error: EngineError | None = None
        self.start()

    def run(self) -> None:
        """Cancel the run; keep the error for the loop."""
        reason = REASONS.get(self._number, f"the command line got {self._number.name}")
        try:
            self._engine.cancel(self._name, reason=reason, code=CODES.get(self._number, 143))
        except EngineError as error:
            self._error = error

    def check(self) -> None:
        """Raise what went wrong, if anything did."""
        if self._error:
            raise self._error


@contextmanager
def _signals() -> Iterator[list[signal.Signals]]:
    """Collect the signals that end a command line, instead of ending in the midst of a line."""
    received: list[signal.Signals] = []

    def remember(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number))

    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
