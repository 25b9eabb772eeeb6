"""What allranks itself has to say beside a run's lines: on stderr, and marked as its own."""

from __future__ import annotations

from collections.abc import Iterable

import click

QUOTED = "  |"
"""How a line begins that quotes a rank's last words: they are not allranks' own."""


def lines(texts: Iterable[str]) -> None:
    """Say one line after another."""
    for text in texts:
        line(text)


def line(text: str) -> None:
    """Say one line."""
    click.echo(text if text.startswith(QUOTED) else f"allranks: {text}", err=True)


def notes(texts: Iterable[str]) -> None:
    """Say what a plan honours in another way than its spec asks."""
    lines(f"note: {text}" for text in texts)
