"""The first process of the cluster's namespaces, and of each node's: sets up, then keeps processes as it is told.

``python -I init.py SOCKET SETUP`` runs the commands of SETUP (a JSON list of argument lists), then listens on the Unix
socket. One JSON line is asked, one answered:

    {"start": NAME, "argv": [...], "env": {...}, "log": PATH, "keep": true}   keep: started again 1 s after it ends
    {"stop": NAME}        killed, and not started again
    {"again": NAME}       as it was started before
    {"list": true}        {NAME: {"pid": 7 | null, "code": null | 1, "starts": 1, "log": PATH}}

Standard library only. When this process is killed, the kernel kills all others of its namespace and takes their mounts
and links away: that is how a cluster goes down and how a node loses its power.
"""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

AGAIN = 1.0  # seconds from the end of a kept process to its next start


@dataclass
class Child:
    """A process that was asked for; ``due`` is when it is started again."""

    argv: list[str]
    env: dict[str, str]
    log: str
    keep: bool
    pid: int | None = None
    code: int | None = None
    starts: int = 0
    due: float | None = None

    def start(self) -> None:
        files = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        reset = [signal.SIGPIPE, signal.SIGXFSZ]  # that Python ignores
        self.pid = os.posix_spawnp(self.argv[0], self.argv, self.env, file_actions=files, setsid=True, setsigdef=reset)
        self.code, self.due = None, None
        self.starts += 1


class Init:
    """Keeps children; ``serve`` never returns."""

    def __init__(self, path: str) -> None:
        self.children: dict[str, Child] = {}
        self._selector = selectors.DefaultSelector()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(path)
        self._server.listen(16)
        self._selector.register(self._server, selectors.EVENT_READ, self._answer)
        self._wake, write = socket.socketpair()
        self._wake.setblocking(False)
        write.setblocking(False)
        self._written_to = write
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._wake, selectors.EVENT_READ, self._reap)

    def serve(self) -> None:
        self._reap()
        while True:
            for key, _ in self._selector.select(self._patience()):
                key.data()
            for child in self.children.values():
                if child.due is not None and child.due <= time.monotonic():
                    child.start()

    def _patience(self) -> float | None:
        dues = [child.due for child in self.children.values() if child.due is not None]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _reap(self) -> None:
        try:
            self._wake.recv(4096)
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self.children.values():
                if child.pid == pid:
                    child.pid, child.code = None, os.waitstatus_to_exitcode(status)
                    child.due = time.monotonic() + AGAIN if child.keep else None

    def _answer(self) -> None:
        connection, _ = self._server.accept()
        with connection:
            connection.settimeout(5)
            try:
                asked = json.loads(connection.makefile().readline())
                connection.sendall(json.dumps(self._do(asked)).encode() + b"\n")
            except (OSError, ValueError, KeyError, TypeError) as error:
                self._complain(connection, error)

    def _complain(self, connection: socket.socket, error: Exception) -> None:
        try:
            connection.sendall(json.dumps({"error": str(error)}).encode() + b"\n")
        except OSError:
            pass  # whoever asked has gone

    def _do(self, asked: dict[str, Any]) -> dict[str, Any]:
        if "start" in asked:
            return self._start(asked)
        if "stop" in asked:
            return self._stop(self.children[asked["stop"]])
        if "again" in asked:
            return self._again(self.children[asked["again"]])
        return {
            name: {"pid": child.pid, "code": child.code, "starts": child.starts, "log": child.log}
            for name, child in self.children.items()
        }

    def _start(self, asked: dict[str, Any]) -> dict[str, Any]:
        name = asked["start"]
        if name in self.children and self.children[name].pid is not None:
            raise ValueError(f"{name} is running")
        child = Child(asked["argv"], asked["env"], asked["log"], asked["keep"])
        child.start()
        self.children[name] = child
        return {"pid": child.pid}

    def _again(self, child: Child) -> dict[str, Any]:
        if child.pid is not None:
            raise ValueError("it is running")
        child.keep = True
        child.start()
        return {"pid": child.pid}

    def _stop(self, child: Child) -> dict[str, Any]:
        child.keep, child.due = False, None
        if child.pid is not None:
            os.kill(child.pid, signal.SIGKILL)
        return {}


def main() -> None:
    path, setup = sys.argv[1:]
    os.chdir("/")
    for command in json.loads(setup):
        try:
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"setup: {error}")
    Init(path).serve()


if __name__ == "__main__":
    main()
