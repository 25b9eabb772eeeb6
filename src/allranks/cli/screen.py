"""Where a followed run is shown: plain lines, or with a footer that tells how it stands when on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import click

from allranks.cli import words
from allranks.cli.lines import Prefix
from allranks.engines.engine import LogLine
from allranks.node.status import Status

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


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
    return Live(world_size) if terminal else Plain(world_size)


class Plain:
    """Ranks' lines on stdout, the gang's on stderr."""

    def __init__(self, world_size: int) -> None:
        self._prefix = Prefix(world_size, terminal=sys.stdout.isatty())

    def show(self, lines: Sequence[LogLine], news: Iterable[str], status: Status) -> None:
        """Write what is new."""
        if lines:
            sys.stdout.write(self._prefix.text(lines))
            sys.stdout.flush()
        for text in news:
            click.echo(f"allranks: {text}", err=True)

    def ask(self, question: str) -> str:
        """Nobody is there to answer."""
        raise KeyboardInterrupt

    def close(self) -> None:
        """Nothing to mend."""


class Live:
    """Everything on the terminal, with a footer below that is drawn anew as the run changes."""

    def __init__(self, world_size: int) -> None:
        from rich.console import Console
        from rich.live import Live as Footer

        self._prefix = Prefix(world_size, terminal=True)
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._footer = Footer(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._footer.start()
        self._last = ""

    def show(self, lines: Sequence[LogLine], news: Iterable[str], status: Status) -> None:
        """Write what is new above the footer."""
        text = self._prefix.text(lines) + "".join(f"allranks: {line}\n" for line in news)
        if text:
            self._console.print(_Ready(text), end="", crop=False)
        from rich.text import Text

        footer = footer_of(status)
        if footer != self._last:
            self._last = footer
            self._footer.update(Text(footer, no_wrap=True, overflow="ellipsis"), refresh=True)

    def ask(self, question: str) -> str:
        """Ask below the ranks' lines, the footer out of the way."""
        self._footer.stop()
        self._last = ""
        try:
            click.echo(question, nl=False)
            answer = click.getchar()
            click.echo(answer)
        finally:
            self._footer.start()
        return answer

    def close(self) -> None:
        """Take the footer away."""
        self._footer.stop()


class _Ready:
    """Text that is ready for the terminal: Rich need not parse, wrap or measure a thousand lines a second."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        yield Segment(self._text)


def footer_of(status: Status) -> str:
    """One line: name, phase, attempt, restarts, nodes, time; what is awaited, if anything is."""
    facts = [
        status.name,
        status.phase,
        f"attempt {status.attempt}",
        f"restarts {words.restarts(status)}",
        words.awaited(status),
        words.took(status),
    ]
    return " · ".join(facts)
