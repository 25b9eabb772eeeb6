"""An agent as the zygote sees it: one connection, with what was asked for and what was not read yet."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections import deque
from typing import Any, Deque, Dict, Iterator, Optional, Set

LARGEST_MESSAGE = 1 << 20
Message = Dict[str, Any]


class Caller:
    """``node`` is known once it has attached; ``sessions`` are those of all ranks that it ever started."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.node: Optional[int] = None
        self.attaching = False
        self.gone = False
        self.sessions: Set[int] = set()
        self.asked: Deque[Message] = deque()
        self._unsent: Deque[bytes] = deque()

    def receive(self) -> None:
        while not self.gone:
            try:
                data = self.socket.recv(LARGEST_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if data:
                self._take(data)
            else:
                self.gone = True

    def _take(self, data: bytes) -> None:
        try:
            message = json.loads(data)
            message["op"]
        except (ValueError, TypeError, KeyError):
            self.send({"event": "error", "message": f"not a request: {data[:80]!r}"})
        else:
            self.asked.append(message)

    def send(self, message: Message) -> None:
        self._unsent.append(json.dumps(message).encode())
        self.flush()

    def flush(self) -> None:
        while self._unsent and not self.gone:
            try:
                self.socket.send(self._unsent[0], socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError:
                self.gone = True
                return
            self._unsent.popleft()

    @property
    def is_behind(self) -> bool:
        return bool(self._unsent)


def accept(listening: socket.socket) -> Iterator[Caller]:
    """Take what waits on a non-blocking socket; connections of other users are closed."""
    while True:
        try:
            connection, _ = listening.accept()
        except BlockingIOError:
            return
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", credentials)[1] == os.getuid():
            yield Caller(connection)
        else:
            connection.close()
