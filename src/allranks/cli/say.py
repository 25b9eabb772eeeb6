"""What allranks itself has to say beside a run's lines: on stderr, and marked as its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import click

from allranks.errors import EngineError

QUOTED = "  |"
"""How a line begins that quotes a rank's last words: they are not allranks' own."""


def lines(texts: Iterable[str]) -> None:
    """Say one line after another."""
    for text in texts:
        line(text)


def line(text: str) -> None:
    """Say one line."""
    click.echo(text if text.startswith(QUOTED) else f"allranks: {text}", err=True)


@contextmanager
def notes(texts: Iterable[str]) -> Iterator[None]:
    """Around what makes a run of a plan: say what it honours in another way than its spec asks.

    Where no run is made, what its error tells anyway (nobody could be asked) is not said twice.
    """
    try:
        yield
    except EngineError as error:
        lines(f"note: {text}" for text in texts if str(error) not in text)
        raise
    lines(f"note: {text}" for text in texts)
