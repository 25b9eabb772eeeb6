"""A shell in a pod on a real terminal: keys, size, and the shell's own exit code."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time

from tests.cluster.engines.conftest import Space


def test_a_terminal_has_its_size_also_when_that_changes(space: Space) -> None:
    space.start("jobset", space.spec())
    space.until(lambda status: status["phase"] == "running")
    master, slave = pty.openpty()
    resize(master, 31, 97)
    argv = [sys.executable, "-m", "allranks", "shell", "gang", "--node", "1"]
    shell = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    os.write(master, b"stty size; echo node-$NODE_RANK\n")
    read_until(master, b"31 97", b"node-1")
    resize(master, 40, 120)
    os.kill(shell.pid, signal.SIGWINCH)
    time.sleep(1)
    os.write(master, b"stty size; exit 9\n")
    read_until(master, b"40 120")
    assert shell.wait(30) == 9
    os.close(master)


def resize(master: int, rows: int, columns: int) -> None:
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def read_until(master: int, *wanted: bytes) -> None:
    seen, until = b"", time.monotonic() + 60
    while not all(word in seen for word in wanted):
        assert time.monotonic() < until, seen
        seen += os.read(master, 4096)
