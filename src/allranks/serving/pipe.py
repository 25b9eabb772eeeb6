"""Messages between rank 0 and the process that speaks HTTP: JSON, one a line, over a socket pair."""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    """One line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class Pipe:
    """Rank 0's end. ``say`` never waits: a thread writes, and what has gathered meanwhile goes out together."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lines = end.makefile("rb")
        self._said: queue.SimpleQueue[bytes | threading.Event] = queue.SimpleQueue()
        threading.Thread(target=self._write, name="to the front", daemon=True).start()

    def say(self, **message: Any) -> None:
        """Send one message, soon."""
        self._said.put(encode(message))

    def flush(self, timeout: float) -> bool:
        """Wait until all that was said is sent, at most ``timeout`` seconds; whether that is so."""
        sent = threading.Event()
        self._said.put(sent)
        return sent.wait(timeout)

    def heard(self) -> Iterator[Message]:
        """Yield messages until the other end is closed; one that was broken off by that is none."""
        try:
            for line in self._lines:
                if line.endswith(b"\n"):
                    yield json.loads(line)
        except ConnectionResetError:
            return  # it had not read all that was said to it

    def _write(self) -> None:
        while True:
            waiting = [self._said.get()]
            while not self._said.empty():
                waiting.append(self._said.get())
            try:
                self._end.sendall(b"".join(one for one in waiting if isinstance(one, bytes)))
            except OSError:
                return  # the front has gone; ``heard`` ends, and says so
            for one in waiting:
                if isinstance(one, threading.Event):
                    one.set()
