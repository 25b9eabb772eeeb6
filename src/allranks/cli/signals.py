"""Ctrl-C, SIGTERM and a closed terminal, collected for a loop that answers them where it can."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

    from allranks.engines.engine import Run

REASONS = {signal.SIGINT: "cancelled by Ctrl-C", signal.SIGTERM: "the command line got SIGTERM"}
CODES = {signal.SIGINT: 130}
OTHERWISE = 143


def cancel(run: Run, number: signal.Signals) -> None:
    """Cancel a run because of a signal, and have its record say so. Raises EngineError."""
    reason = REASONS.get(number, f"the command line got {number.name}")
    run.cancel(reason=reason, code=CODES.get(number, OTHERWISE))


@contextmanager
def collected() -> Iterator[list[signal.Signals]]:
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
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt again, for a question."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
