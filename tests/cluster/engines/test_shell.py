"""A shell in a pod on a real terminal: keys, size, and the shell's own exit code."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from typing import Any

import pytest

from tests.cluster.engines.conftest import ENGINES, Space

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    **{engine: (engine, {}) for engine in ENGINES},
    "mpijob over ssh": ("mpijob", {"engines": {"mpijob": {"start": "mpirun"}}}),
}
RANKS = [f"rank {rank} | rank {rank}" for rank in range(4)]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_gang_that_stays_takes_commands_and_shells_and_ends_once(space: Space, shape: str) -> None:
    engine, fields = SHAPES[shape]
    done = space.allranks("up", "--engine", engine, str(space.spec(**fields)))
    assert (done.returncode, done.stdout) == (0, "gang\n"), done.stderr
    done = space.allranks("exec", "gang", "--", "sh", "-c", "echo rank $RANK")
    assert sorted(done.stdout.splitlines()) == RANKS, done.stderr
    assert space.allranks("exec", "gang", "--", "sh", "-c", "exit 5").returncode == 5
    recent = space.allranks("logs", "gang", "--since", "10m")
    assert set(RANKS) <= set(recent.stdout.splitlines()), recent.stderr
    terminal_of_node_1(space)
    assert re.search(rf"gang +{engine} ", space.allranks("list").stdout)
    following = [sys.executable, "-m", "allranks", "logs", "gang", "--since", "10m", "-f"]
    with subprocess.Popen(following, stdout=subprocess.PIPE, text=True) as follow:
        for _ in range(2):
            done = space.allranks("cancel", "gang")
            assert done.returncode == 0, done.stderr
        said, _ = follow.communicate(timeout=60)
    assert set(RANKS) <= set(said.splitlines())
    assert space.status()["phase"] == "cancelled"


def terminal_of_node_1(space: Space) -> None:
    """Keys go in, the window has its size also when that changes, and the shell's own exit code comes out."""
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
