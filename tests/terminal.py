"""A terminal, for command lines that behave otherwise on one."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from typing import Any


class Terminal:
    """A command line on a terminal of its own."""

    def __init__(self, argv: Sequence[str], rows: int = 24, columns: int = 120) -> None:
        self.master, slave = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(slave)
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
        self.process = subprocess.Popen(
            list(argv), stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True,
            preexec_fn=_take_terminal,
        )  # fmt: skip
        os.close(slave)
        self.seen = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def settings(self) -> list[Any]:
        """What termios says of it."""
        return termios.tcgetattr(self.master)

    def type(self, text: str) -> None:
        time.sleep(0.2)  # what is typed before a question reads single keys is thrown away with its line
        os.write(self.master, text.encode())

    def expect(self, pattern: str, seconds: float = 40) -> None:
        give_up = time.monotonic() + seconds
        while not re.search(pattern, self.seen):
            assert time.monotonic() < give_up, f"no {pattern!r} in {self.seen!r}"
            self._read()

    def end(self) -> int:
        give_up = time.monotonic() + 40
        while self.process.poll() is None:
            assert time.monotonic() < give_up, f"it does not end: {self.seen!r}"
            self._read()
        self._read()
        os.close(self.master)
        return self.process.returncode

    def _read(self) -> None:
        if select.select([self.master], [], [], 0.1)[0]:
            try:
                self.seen += os.read(self.master, 65536).decode(errors="replace")
            except OSError:
                pass  # nobody has the other end any more


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
