"""Talking to the first process of a namespace (init.py), and running commands where it is."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar

from tests.cluster.errors import ClusterError, Unavailable

T = TypeVar("T")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Init:
    """The first process of the cluster, or of a node, that listens on the Unix socket ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def start(
        self, name: str, argv: Sequence[object], log: Path, env: Mapping[str, str] | None = None, keep: bool = True
    ) -> None:
        """Start a process; ``keep`` has it started again whenever it ends."""
        environment = {"PATH": PATH, "HOME": "/root", **(env or {})}
        line = [str(word) for word in argv]
        self.ask({"start": name, "argv": line, "env": environment, "log": str(log), "keep": keep})

    def stop(self, name: str, seconds: float = 20) -> None:
        """End a process and see that it has ended."""
        self.ask({"stop": name})
        wait(f"the end of {name}", lambda: self.children()[name]["pid"] is None, seconds)

    def again(self, name: str) -> None:
        """Start a process that was stopped, as it was started before."""
        self.ask({"again": name})

    def children(self) -> dict[str, dict[str, Any]]:
        """Each process that was started: its pid (in that namespace) or None, exit code, number of starts, log."""
        return self.ask({"list": True})

    def ask(self, question: Mapping[str, object]) -> dict[str, Any]:
        with self._connect() as connection:
            connection.sendall(json.dumps(question).encode() + b"\n")
            answer: dict[str, Any] = json.loads(connection.makefile().readline())
        if "error" in answer:
            raise ClusterError(f"{self.path}: {answer['error']}")
        return answer

    def pid(self) -> int | None:
        """Its process number as this process sees it; None when nobody listens."""
        try:
            with self._connect() as connection:
                found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:
            return None
        pid: int = struct.unpack("3i", found)[0]
        return pid

    def inside(self, *argv: object) -> list[str]:
        """The command line that runs ``argv`` in its namespaces."""
        pid = self.pid()
        if pid is None:
            raise ClusterError(f"nothing listens on {self.path}: it is not up")
        return ["nsenter", "-t", str(pid), "-m", "-n", "-p", "-u", "--", *(str(word) for word in argv)]

    def run(self, *argv: object, **options: Any) -> str:
        """Run a command in its namespaces; its output."""
        return run(*self.inside(*argv), **options)

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(10)
        folder = os.open(self.path.parent, os.O_PATH)  # a socket's path may have 107 bytes; a folder's any number
        try:
            connection.connect(f"/proc/self/fd/{folder}/{self.path.name}")
        except BaseException:
            connection.close()
            raise
        finally:
            os.close(folder)
        return connection


def run(*argv: object, text: str | None = None, check: bool = True, seconds: float = 120) -> str:
    """Run a command; its output. Errors hold its last words."""
    line = [str(word) for word in argv]
    env = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{PATH}"}  # /sbin is not on everyone's
    try:
        done = subprocess.run(line, input=text, capture_output=True, text=True, timeout=seconds, check=False, env=env)
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{' '.join(line)}: not done after {seconds:g} s") from error
    if check and done.returncode:
        raise ClusterError(f"{' '.join(line)}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def wait(what: str, ready: Callable[[], T | None], seconds: float, every: float = 0.05) -> T:
    """What ``ready`` returns, once it is true; an error in it means not yet, but Unavailable never.

    Raises:
        ClusterError: it was not in time; the message has the last error.
    """
    end = time.monotonic() + seconds
    last = ""
    while time.monotonic() < end:
        try:
            found = ready()
            if found:
                return found
        except Unavailable:
            raise
        except (OSError, HTTPException, ClusterError, ValueError, KeyError) as error:
            last = f": {error}"
        time.sleep(every)
    raise ClusterError(f"waited {seconds:g} s for {what}{last}")


def tail(log: Path, lines: int = 3) -> str:
    """The last lines of a log."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
