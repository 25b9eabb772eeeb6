"""A shell on a node: a real terminal with the node's identity, and never longer than its gang."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from allranks.node import processes
from tests.gangs.gang import CLI, cli, eventually
from tests.gangs.test_interactive import IdleGang
from tests.terminal import Terminal

pytestmark = pytest.mark.gang
Terminals = Callable[..., Terminal]
TELL = "echo $ALLRANKS_RUN $ALLRANKS_NODE/$ALLRANKS_NODES $NODE_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR [$RANK$MASTER_PORT]"


def is_alive(pid: int) -> bool:
    process = processes.read(pid)
    return process is not None and process.is_alive


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    with ExitStack() as terminals:
        yield lambda *argv, **size: terminals.enter_context(Terminal([*CLI, *argv], **size))


@pytest.fixture
def g(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IdleGang]:
    monkeypatch.setenv("SHELL", "/bin/sh")
    monkeypatch.setenv("PS1", "% ")
    with IdleGang(tmp_path) as gang:
        yield gang


def test_a_terminal_has_the_nodes_identity_and_the_shells_code(g: IdleGang, terminal: Terminals) -> None:
    shell = terminal("shell", "g", "--node", "1", rows=33, columns=77)
    shell.expect("% ")
    shell.type(f"{TELL}; pwd\r")
    shell.expect(r"\ng 1/2 1 2 127\.1\.0\.1 \[\]\r\n")
    shell.expect(f"\n{g.folder}\r\n")
    assert shell.settings() != shell.before, "raw"
    shell.type("tty && stty size\r")
    shell.expect(r"/dev/pts/\d+\r\n33 77\r\n")
    shell.resize(40, 100)
    os.kill(shell.process.pid, signal.SIGWINCH)
    time.sleep(0.3)
    shell.type("stty size\r")
    shell.expect("\n40 100\r\n")
    shell.type("sleep 100; echo still $?\r")
    shell.type("\x03")  # it goes to what runs in the shell, and ends neither the shell nor us
    shell.expect(r"\^C")
    shell.type("setsid sleep 321 & echo child $!.\r")
    shell.expect(r"\nchild \d+\.")
    settings = shell.before
    shell.type("exit 5\r")
    master = os.dup(shell.master)
    assert shell.end() == 5
    import termios

    assert termios.tcgetattr(master) == settings, "the terminal is as it was"
    os.close(master)
    # what it left is gone: no process may be left after a test


def test_a_shell_ends_with_its_gang(g: IdleGang, terminal: Terminals) -> None:
    shell = terminal("shell", "g")
    shell.type("echo $((6 * 7))\r")
    shell.expect("42\r\n")
    shell.type("trap '' HUP; echo deaf$?; sleep 100\r")
    shell.expect("deaf0")
    assert cli("cancel", "g").returncode == 0
    assert shell.end() == 137
    assert "allranks: g has ended, and this shell with it" in shell.seen
    said = cli("shell", "g")
    assert said.returncode == 69
    assert said.stderr == "allranks: g is over (cancelled): it has no nodes any more\n"


def test_without_a_terminal_a_shell_reads_commands_from_its_input(g: IdleGang) -> None:
    said = cli("shell", "g", "--node", "1", input=f"{TELL}\ntest -t 0 || exit 6\n")
    assert (said.returncode, said.stdout, said.stderr) == (6, "g 1/2 1 2 127.1.0.1 []\n", "")
    said = cli("shell", "g", "--node", "2")
    assert (said.returncode, said.stderr) == (2, "allranks: --node 2: g has nodes 0 to 1\n")


def test_a_killed_command_line_takes_its_shell_along(g: IdleGang, terminal: Terminals) -> None:
    shell = terminal("shell", "g")
    shell.type("echo pid=$$.\r")
    shell.expect(r"pid=\d+\.")
    pid = int(shell.seen.rpartition("pid=")[2].partition(".")[0])
    shell.process.kill()
    eventually("the shell is gone", lambda: not is_alive(pid))
    shell.end()


def test_ctrl_c_in_exec_asks_whether_to_leave_or_to_stop_the_command(g: IdleGang, terminal: Terminals) -> None:
    for answer, code, phase in (("l", 0, "running"), ("s", 130, "idle")):
        cli("cancel", "--command", "g")
        shown = terminal("exec", "g", "--", "python", "show.py", "wait")
        shown.expect("I am 3 wait")
        shown.type("\x03")
        shown.expect(r"\[l\]eave it running, or \[s\]top the command\?")
        shown.type(answer)
        assert shown.end() == code
        assert g.until(phase)["phase"] == phase
    assert "stopping the command of g ..." in shown.seen
