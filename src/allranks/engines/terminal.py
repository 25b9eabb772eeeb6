"""This process's own terminal while a shell somewhere else has it: raw keys, size, signals."""

from __future__ import annotations

import fcntl
import os
import signal
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

CHUNK = 64 * 1024
"""Bytes read at once from either side."""

FROM_THE_TERMINAL = ("TERM", "COLORTERM", "LANG", "LC_ALL")
"""Variables that are the terminal's, whatever the node's own are."""


def typed() -> bytes:
    """What was typed; empty at the end of it, or when the terminal has gone."""
    try:
        return os.read(0, CHUNK)
    except OSError:
        return b""


def size() -> bytes:
    """The terminal's size as the kernel's ``struct winsize``; empty when it has gone, or has none."""
    try:
        return fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8)
    except OSError:
        return b""


@contextmanager
def wakes() -> Iterator[int]:
    """A pipe that holds the numbers of the signals that came: a new size, an end, the shell's own end."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    numbers = (signal.SIGWINCH, signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda number, frame: None) for number in numbers}
    old = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(old)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


@contextmanager
def raw_input() -> Iterator[None]:
    """Every key goes to the shell, Ctrl-C too; our terminal is put back as it was."""
    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)  # what was typed already is kept
    try:
        yield
    finally:
        try:
            termios.tcsetattr(0, termios.TCSADRAIN, before)
        except termios.error:
            pass  # it was closed
