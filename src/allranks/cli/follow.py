"""Follow a run to its end: its lines, its fortunes, and what Ctrl-C and SIGTERM ask for."""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from allranks.cli import say, signals, words
from allranks.cli.lines import batches
from allranks.cli.news import News
from allranks.cli.screen import Screen, screen
from allranks.engines.engine import OURS, CanLog, Engine, Run
from allranks.errors import EngineError

if TYPE_CHECKING:
    from allranks.node.status import Status


@dataclass(frozen=True)
class Manners:
    """How Ctrl-C asks, what is said when it is let go, and whether a terminal that is closed ends it."""

    question: str = "\n[d]etach and let it go on, or [c]ancel? "
    let_go: str = "d"
    end: str = "c"
    goes_on: str = "{0} goes on; see: allranks logs -f {0}, allranks cancel {0}"
    ending: str = "ending {0} ..."
    ends_with_terminal: bool = True


OF_A_RUN = Manners()
OF_A_COMMAND = Manners(
    question="\n[l]eave it running, or [s]top the command? ",
    let_go="l",
    end="s",
    goes_on="it runs on; see: allranks logs -f {0}, allranks cancel --command {0}",
    ending="stopping the command of {0} ...",
    ends_with_terminal=False,
)
EXIT_UNTOLD = 70
"""Of a run that has left no exit code, or none that tells what went wrong."""
LAST_WAIT = 20.0
"""Seconds for a run's supervisor to be gone once the run is over."""
POLL = 0.05


def follow(engine: Engine, run: Run, manners: Manners = OF_A_RUN) -> int:
    """Show a run until it is over or let go of; return the exit code for it."""
    if not isinstance(engine, CanLog):
        from allranks.cli.choose import cannot

        raise cannot(engine, f"keeps no logs to follow (see: allranks status {run.name})", CanLog)
    with signals.collected() as received:
        shown = screen(run.status().world_size)
        try:
            ended = _Following(run, shown, received, manners).to_the_end(engine)
        finally:
            shown.close()
        if ended is None:
            run.detach()
            say.line(manners.goes_on.format(run.name))
            return 0
        gone = run.wait(LAST_WAIT)
    say.lines(words.ending(ended))
    if not gone:
        say.line(f"it has not gone yet; see: allranks status {run.name}, or end it with: allranks cancel {run.name}")
    return EXIT_UNTOLD if ended.exit_code is None else ended.exit_code


def until_idle(run: Run) -> int:
    """Wait until a gang that is up is complete, saying what is awaited; return 0, or the code of one that failed."""
    news = News()
    with signals.collected() as received:
        while (status := run.status()).phase != "idle" and not status.is_over:
            say.lines(news.of(status, time.monotonic()))
            if received:
                signals.cancel(run, received[0])
                received.clear()
            time.sleep(POLL)
    if status.is_over:
        say.lines(words.ending(status))
        return status.exit_code or EXIT_UNTOLD
    size = f"{words.counted(status.world_size, 'rank')} on {words.counted(len(status.nodes), 'node')}"
    then = f"allranks exec {run.name} -- python SCRIPT, and in the end: allranks cancel {run.name}"
    say.line(f"{size} idle; next: {then}")
    click.echo(run.name)
    return 0


class _Following:
    def __init__(self, run: Run, shown: Screen, received: list[signal.Signals], manners: Manners) -> None:
        self._run, self._screen, self._received, self._manners = run, shown, received, manners
        self._cancel: _Cancel | None = None

    def to_the_end(self, logs: CanLog) -> Status | None:
        """Return how the run ended, or None when it is to go on without us."""
        news = News()
        for lines in batches(logs.logs(self._run.name, self._run.lines, follow=True)):
            status = self._run.status()
            lines = [line for line in lines if line.node != OURS]  # a note of the status says the same
            self._screen.show(lines, news.of(status, time.monotonic()), status)
            if self._received and not self._go_on(self._received.pop(0)):
                return None
            if self._cancel:
                self._cancel.check()
        if self._cancel:
            self._cancel.join(LAST_WAIT)  # what it writes down is how the run ended
            self._cancel.check()
        return self._run.status()

    def _go_on(self, number: signal.Signals) -> bool:
        """Answer a signal; False lets go of the run."""
        if self._cancel:
            if number == signal.SIGINT:
                raise KeyboardInterrupt  # somebody will not wait for the grace; the supervisor ends it without us
            return True
        if number == signal.SIGINT and self._wants_to_detach():
            return False
        if number == signal.SIGHUP and not self._manners.ends_with_terminal:
            return False
        self._cancel = _Cancel(self._run, number)
        self._screen.show([], [self._manners.ending.format(self._run.name)], self._run.status())
        return True

    def _wants_to_detach(self) -> bool:
        try:
            with signals.interruptible():
                while True:
                    answer = self._screen.ask(self._manners.question).strip().lower()[:1]
                    if answer in (self._manners.let_go, self._manners.end):
                        return answer == self._manners.let_go
        except (KeyboardInterrupt, EOFError):
            return False


class _Cancel(threading.Thread):
    """Cancels beside the loop, so that what ranks say while they end is still shown."""

    def __init__(self, run: Run, number: signal.Signals) -> None:
        super().__init__(daemon=True)
        self._run, self._number = run, number
        self._error: EngineError | None = None
        self.start()

    def run(self) -> None:
        """Cancel the run; keep the error for the loop."""
        try:
            signals.cancel(self._run, self._number)
        except EngineError as error:
            self._error = error

    def check(self) -> None:
        """Raise what went wrong, if anything did."""
        if self._error:
            raise self._error
