"""A shell in a gang's container, on this process's own terminal, or on plain streams where it has none."""

from __future__ import annotations

import os
import select
import signal
import struct
import threading
from contextlib import nullcontext

from allranks.engines.kubernetes import exec
from allranks.engines.kubernetes.client import Client
from allranks.engines.kubernetes.exec import STDERR, Session
from allranks.engines.kubernetes.pods import Pod
from allranks.engines.terminal import FROM_THE_TERMINAL, raw_input, size, typed, wakes
from allranks.errors import EngineError


def serve(client: Client, pod: Pod, node: int) -> int:
    """Run the node's shell until it ends; return its exit code. Raises EngineError when the line to it breaks."""
    on_terminal = os.isatty(0)
    known = [f"{name}={os.environ[name]}" for name in FROM_THE_TERMINAL if on_terminal and name in os.environ]
    argv = [*pod.agent("shell"), str(node), *known]
    with (
        exec.session(client, pod.name, pod.container, argv, pod.namespace, stdin=True, tty=on_terminal) as session,
        wakes() as wake,
        raw_input() if on_terminal else nullcontext(),
    ):
        return _Relay(session, wake, on_terminal).until_it_ends()


class _Relay:
    """Between our streams and the shell's: what it writes is read by a thread, what is typed by us."""

    def __init__(self, session: Session, wake: int, on_terminal: bool) -> None:
        self._session, self._wake, self._on_terminal = session, wake, on_terminal
        self._ended, self._says = os.pipe()
        self._error: EngineError | None = None
        self._reader = threading.Thread(target=self._show, daemon=True)

    def until_it_ends(self) -> int:
        self._resize()
        self._reader.start()
        listening = [0]
        try:
            while True:
                readable, _, _ = select.select([*listening, self._wake, self._ended], [], [])
                if self._ended in readable:
                    return self._code()
                if self._wake in readable and self._is_told_to_end():
                    return 128 + signal.SIGHUP
                if 0 in readable and not self._listen():
                    listening = []
        finally:
            self._session.close()
            self._reader.join(1)
            os.close(self._ended)

    def _show(self) -> None:
        try:
            while (piece := self._session.read()) is not None:
                self._write(2 if piece[0] == STDERR else 1, piece[1])
        except EngineError as error:
            self._error = error
        except OSError:
            pass  # our own terminal has gone: a signal says so too
        finally:
            os.close(self._says)

    @staticmethod
    def _write(stream: int, data: bytes) -> None:
        while data:
            data = data[os.write(stream, data) :]

    def _code(self) -> int:
        if self._error:
            raise EngineError(f"the shell's pod has ended, or cannot be reached any more: {self._error}")
        return self._session.code or 0

    def _listen(self) -> bool:
        """Pass on what was typed; False at the end of it."""
        keys = typed()
        if keys:
            self._session.write(keys)
        else:
            self._session.end_input()
        return bool(keys)

    def _is_told_to_end(self) -> bool:
        numbers = os.read(self._wake, 4096)
        if signal.SIGWINCH in numbers:
            self._resize()
        return signal.SIGTERM in numbers or signal.SIGHUP in numbers

    def _resize(self) -> None:
        packed = size() if self._on_terminal else b""
        if packed:
            rows, columns = struct.unpack("HHHH", packed)[:2]
            self._session.resize(columns, rows)
