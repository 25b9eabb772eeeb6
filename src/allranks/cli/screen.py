"""Where a followed run is shown: plain lines, or on a terminal with a panel below them that tells how it stands."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

import click

from allranks.cli import say
from allranks.cli.lines import Prefix
from allranks.cli.panel import panel
from allranks.cli.plain import columns
from allranks.engines.engine import LogLine
from allranks.node.status import Status

REFRESH = 0.25
"""Seconds between two looks at how the run stands while its ranks print nothing."""


class Screen(Protocol):
    """Shows what ranks print, what happens to the gang, and how it stands."""

    def show(self, lines: Sequence[LogLine], news: Iterable[str], status: Status) -> None:
        """Write what is new."""

    def ask(self, question: str) -> str:
        """Wait for one key. Raises KeyboardInterrupt for another Ctrl-C."""

    def close(self) -> None:
        """Leave the terminal as it was."""


def screen(world_size: int) -> Screen:
    """The live screen on a terminal, else the plain one."""
    terminal = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    return Live(world_size) if terminal and os.environ.get("TERM") != "dumb" else Plain(world_size)


class Plain:
    """Ranks' lines on stdout, the gang's on stderr."""

    def __init__(self, world_size: int) -> None:
        self._prefix = Prefix(world_size, terminal=sys.stdout.isatty())

    def show(self, lines: Sequence[LogLine], news: Iterable[str], status: Status) -> None:
        """Write what is new."""
        if lines:
            sys.stdout.write(self._prefix.text(lines))
            sys.stdout.flush()
        say.lines(news)

    def ask(self, question: str) -> str:
        """Nobody is there to answer."""
        raise KeyboardInterrupt

    def close(self) -> None:
        """Nothing to mend."""


class Live:
    """Everything on the terminal, with a panel below that is drawn anew as the run changes."""

    def __init__(self, world_size: int) -> None:
        self._prefix = Prefix(world_size, terminal=True)
        self._footer = Footer()
        self._last: dict[int, str] = {}
        self._due = 0.0

    def show(self, lines: Sequence[LogLine], news: Iterable[str], status: Status) -> None:
        """Write what is new above the panel."""
        text = self._prefix.text(lines) + "".join(f"allranks: {line}\n" for line in news)
        self._last.update((line.rank, line.text) for line in lines if line.rank is not None)
        now = time.monotonic()
        if text or now >= self._due or self._footer.is_stale:
            self._due = now + REFRESH
            width, height = size()
            self._footer.draw(text, panel(status, self._last, width - 1, max(height // 3, 1)))

    def ask(self, question: str) -> str:
        """Ask below the ranks' lines, the panel out of the way."""
        self._footer.draw("", [])
        click.echo(question, nl=False)
        answer = click.getchar()
        click.echo(answer)
        return answer

    def close(self) -> None:
        """Take the panel away."""
        self._footer.draw("", [])


class Footer:
    """Lines that stay at the bottom while others scroll by above them.

    Rich's Live would do but for two things: when the terminal was made narrower, it leaves parts of the old lines
    behind; and when the terminal has gone, it raises.
    """

    def __init__(self) -> None:
        self._drawn: Sequence[str] = ()
        self._width = 0

    @property
    def is_stale(self) -> bool:
        """Whether the terminal has another size by now."""
        return bool(self._drawn) and size()[0] != self._width

    def draw(self, above: str, lines: Sequence[str]) -> None:
        """Write ``above``, whole lines, and then these instead of the ones before.

        A terminal that is lost is no error: the signal that comes with it says what is to become of the run.
        """
        if not above and list(lines) == list(self._drawn) and not self.is_stale:
            return
        self._width = size()[0]
        try:
            sys.stdout.write(self._erasing() + above + "\n".join(map(_styled, lines)))
            sys.stdout.flush()
        except OSError:
            _write_into_nothing()
        self._drawn = lines

    def _erasing(self) -> str:
        """Go to where the old lines begin: narrower than they were, the terminal has broken them into several."""
        if not self._drawn:
            return ""
        rows = sum(max(1, -(-columns(line) // self._width)) for line in self._drawn)
        return "\r" + (f"\x1b[{rows - 1}A" if rows > 1 else "") + "\x1b[J"


def _write_into_nothing() -> None:
    """From here on: what is still to be said, and what did not get out, must not fail again."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nothing, stream.fileno())
    os.close(nothing)


def size() -> tuple[int, int]:
    """Columns and rows of the terminal, as they are now."""
    try:
        width, height = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        width, height = 0, 0
    return width or 80, height or 24


def _styled(line: str) -> str:
    """What somebody should look at stands out."""
    if os.environ.get("NO_COLOR"):
        return line
    if line.startswith("! "):
        return f"\x1b[31m{line}\x1b[0m"
    return f"\x1b[33m{line}\x1b[0m" if line.startswith("waiting for ") else line
