"""A zygote under test, and the smallest client for it: one object is init and one agent."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from allranks.node import processes

ENTRY = Path(processes.__file__).with_name("__main__.py")
Message = dict[str, Any]


class Channel:
    """One connection to a zygote, with the events that came and were not asked for yet."""

    def __init__(self, name: str, node: int) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(name)
        self._events: list[Message] = []
        self.send(op="attach", node=node)

    def send(self, **message: Any) -> None:
        self.socket.send(json.dumps(message).encode())

    def wait(self, event: str, seconds: float = 60, **match: Any) -> Message:
        """Return the next event of that kind with these fields; others are kept."""
        end = time.monotonic() + seconds
        while True:
            for found in self._events:
                if found["event"] == event and all(found[key] == value for key, value in match.items()):
                    self._events.remove(found)
                    return found
            self.socket.settimeout(max(0.001, end - time.monotonic()))
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError("the zygote is gone")
            self._events.append(json.loads(data))

    def close(self) -> None:
        self.socket.close()


class Zygote(Channel):
    """Starts one, attaches as node 0, and at the end sees that nothing is left."""

    def __init__(
        self, argv: Sequence[str], cwd: Path, preload: Sequence[str] = (), env: Mapping[str, str] | None = None,
        path0: Path | None = None, python: str = sys.executable,
    ) -> None:  # fmt: skip
        self.argv, self.cwd = list(argv), cwd
        self.name = f"\0allranks-test-{secrets.token_hex(8)}"
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(self.name)
        self._listening.listen()
        lifeline, self.lifeline = os.pipe()
        config = {
            "listen": self._listening.fileno(), "lifeline": lifeline, "preload": list(preload),
            "path0": str(path0 or cwd), "argv": self.argv,
        }  # fmt: skip
        self.log = cwd / "zygote.log"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [python, str(ENTRY), "zygote", json.dumps(config)],
                pass_fds=[self._listening.fileno(), lifeline], cwd=cwd, env={**(os.environ if env is None else env)},
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        os.close(lifeline)
        super().__init__(self.name, 0)

    def spawn(self, rank: int = 0, **fields: Any) -> Message:
        """Start a rank; its log is LOG-N in the working folder."""
        message: Message = {
            "rank": rank, "argv": self.argv, "set": {}, "unset": [], "cwd": str(self.cwd), "how": "fork",
            "log": str(self.cwd / f"log-{rank}"), "learn": None, **fields,
        }  # fmt: skip
        self.send(op="spawn", **message)
        return self.wait("spawned", rank=rank)

    def run(self, rank: int = 0, **fields: Any) -> tuple[str, int, Message]:
        """Start a rank and wait for its end: output, raw wait status, the spawned event."""
        spawned = self.spawn(rank, **fields)
        end = self.wait("exit", pid=spawned["pid"])
        log = Path(fields.get("log") or self.cwd / f"log-{rank}")
        return log.read_text(), end["status"], spawned

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
        os.close(self.lifeline)
        self._listening.close()
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()


def eventually(condition: Callable[[], object], seconds: float = 10) -> bool:
    """Tell whether the condition comes true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
