"""The agent's side of its connection to the zygote: one JSON object a packet, both ways."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

from allranks.node.launch.spawn import Spawn

PACKET = 256 * 1024

Event = Dict[str, Any]


class Channel:
    """Requests go out at once; events come to ``on_event`` in order, and None once when the zygote has gone.

    The listening socket is init's, so connecting succeeds before the zygote is up, and again after it was replaced.
    """

    def __init__(self, name: str, on_event: Callable[[Optional[Event]], None]) -> None:
        self._name, self._on_event = name, on_event
        self._socket: Optional[socket.socket] = None

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def open(self, node: int) -> None:
        """Connect and attach as ``node``. Raises OSError when init has gone."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect("\0" + self._name)
            connection.setblocking(False)
        except OSError:
            connection.close()
            raise
        self._socket = connection
        asyncio.get_running_loop().add_reader(connection, self._read, connection)
        self._send(op="attach", node=node)

    def spawn(self, spawn: Spawn, workdir: str) -> None:
        self._send(
            op="spawn", rank=spawn.rank if spawn.rank is not None else -1, argv=list(spawn.argv),
            set=dict(spawn.environment), cwd=workdir, log=spawn.log, learn=spawn.learn or None,
            how="fork" if spawn.fork else "exec",
        )  # fmt: skip

    def signal(self, number: int) -> None:
        """To the process groups of all of this node's ranks."""
        self._send(op="signal", signal=number, rank=None)

    def sweep(self) -> None:
        """Kill whatever the ended ranks left behind; answered by ``swept``."""
        self._send(op="sweep")

    def become(self, python: Sequence[str], config: Mapping[str, Any]) -> None:
        """Be the zygote of another command: the connection ends with this one, and the next one's ``ready`` follows."""
        self._send(op="become", python=list(python), config=dict(config))

    def warm(self, modules: Any) -> None:
        self._send(op="warm", modules=list(modules))

    def close(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _send(self, **message: Any) -> None:
        if self._socket is None:
            return
        try:
            self._socket.send(json.dumps(message).encode())
        except OSError:
            pass  # it has gone: the reader is about to say so

    def _read(self, connection: socket.socket) -> None:
        while True:
            try:
                packet = connection.recv(PACKET)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self.close()
                self._on_event(None)
                return
            self._on_event(json.loads(packet))
            if self._socket is not connection:
                return
