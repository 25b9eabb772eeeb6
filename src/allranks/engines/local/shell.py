"""A shell on one node of a local gang: relayed through a terminal of its own, or on plain streams."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping

from allranks.engines.local.rundir import RunDir
from allranks.engines.terminal import CHUNK, FROM_THE_TERMINAL, raw_input, size, typed, wakes
from allranks.engines.wanted import must_have_node
from allranks.errors import EngineError
from allranks.node import network, processes
from allranks.node.environment import shell_environment

LOOK = 0.25
"""Seconds between two looks whether the gang still lives."""
GRACE = 1.0
"""Seconds for a shell to end by itself once its gang has."""


def serve(run: RunDir, node: int) -> int:
    """Run the user's shell as somebody on that node; return its exit code. Raises EngineError, UsageError."""
    gang, holder = run.gang(), run.holder()
    if holder is None or run.status().is_over:
        raise EngineError(f"{run.name} is over ({run.status().phase}): it has no nodes any more")
    must_have_node(run.name, node, gang.nodes)
    gangs_own = {os.fsdecode(name): os.fsdecode(value) for name, value in processes.environment(holder.pid).items()}
    if gang.rdma:
        gang, _ = network.settle(gang, node, gangs_own, lambda line: None)
    env = shell_environment(gang, node, run.status().attempt, gangs_own)
    env.update({name: os.environ[name] for name in FROM_THE_TERMINAL if name in os.environ})
    processes.become_subreaper()  # what the shell leaves behind comes to us, and goes with us
    others = {process.pid for process in processes.descendants(os.getpid())}
    begin = _on_a_terminal if os.isatty(0) else _on_plain_streams
    try:
        code = begin([env.get("SHELL") or "/bin/sh"], env, gang.workdir, lambda: run.holder() == holder)
    except OSError as error:
        raise EngineError(f"no shell on node {node}: {error.strerror}: {error.filename}") from error
    finally:
        processes.kill_descendants(os.getpid(), keep=others)
    if run.holder() != holder:
        print(f"allranks: {run.name} has ended, and this shell with it", file=sys.stderr)
    return code


def _die_with_us() -> None:
    processes.die_with_parent(signal.SIGKILL)


# Without a terminal


def _on_plain_streams(argv: list[str], env: Mapping[str, str], cwd: str, alive: Callable[[], bool]) -> int:
    shell = subprocess.Popen(argv, env=env, cwd=cwd, preexec_fn=_die_with_us)
    while alive():
        try:
            return _code(shell.wait(LOOK))
        except subprocess.TimeoutExpired:
            continue
    shell.send_signal(signal.SIGHUP)
    try:
        return _code(shell.wait(GRACE))
    except subprocess.TimeoutExpired:
        shell.kill()
        return _code(shell.wait())


def _code(returncode: int) -> int:
    return returncode if returncode >= 0 else 128 - returncode


# On a terminal


def _on_a_terminal(argv: list[str], env: Mapping[str, str], cwd: str, alive: Callable[[], bool]) -> int:
    with wakes() as wake:
        pid, master = pty.fork()
        if pid == 0:
            _become(argv, env, cwd)
        with raw_input():
            relay = _Relay(pid, master, wake)
            try:
                relay.until_it_ends(alive)
            finally:
                os.close(master)  # the kernel hangs up on whoever still has the other end
        return _code(os.waitstatus_to_exitcode(relay.status))


def _become(argv: list[str], env: Mapping[str, str], cwd: str) -> None:
    _die_with_us()
    try:
        os.chdir(cwd)
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(2, f"allranks: cannot run {argv[0]} in {cwd}: {error.strerror}\r\n".encode())
    os._exit(127)


class _Relay:
    """Between our terminal and the shell's: bytes both ways, its size, and the end of either."""

    def __init__(self, pid: int, master: int, wake: int) -> None:
        self._pid, self._master, self._wake = pid, master, wake
        self._typed = b""
        self.status = 0
        os.set_blocking(master, False)
        self._resize()

    def until_it_ends(self, alive: Callable[[], bool]) -> None:
        while not self._has_ended():
            if not alive():
                return self._end()
            writing = [self._master] if self._typed else []
            readable, writable, _ = select.select([0, self._master, self._wake], writing, [], LOOK)
            if self._wake in readable and self._is_told_to_end():
                return self._end()
            if self._master in readable:
                self._show()
            if 0 in readable and not self._listen():
                return self._end()
            if writable:
                self._typed = self._typed[os.write(self._master, self._typed) :]
        while self._show():
            pass
        return None

    def _show(self) -> bool:
        """Write what it wrote; False when there is nothing (more)."""
        try:
            written = os.read(self._master, CHUNK)
        except OSError:  # nothing now, or nobody there any more: then SIGCHLD is on its way
            return False
        while written:
            written = written[os.write(1, written) :]
        return True

    def _listen(self) -> bool:
        """Take what was typed; False when our terminal has gone."""
        keys = typed()
        self._typed += keys
        return bool(keys)

    def _is_told_to_end(self) -> bool:
        numbers = os.read(self._wake, 4096)
        if signal.SIGWINCH in numbers:
            self._resize()
        return signal.SIGTERM in numbers or signal.SIGHUP in numbers

    def _resize(self) -> None:
        packed = size()
        if packed:
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, packed)  # the kernel tells the shell

    def _has_ended(self) -> bool:
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            self.status = status
        return bool(pid)

    def _end(self) -> None:
        processes.signal_group(self._pid, signal.SIGHUP)
        processes.signal_group(self._pid, signal.SIGCONT)
        select.select([self._wake], [], [], GRACE)
        if not self._has_ended():
            os.kill(self._pid, signal.SIGKILL)
            _, self.status = os.waitpid(self._pid, 0)
