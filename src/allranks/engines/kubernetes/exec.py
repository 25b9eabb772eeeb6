"""Commands in a pod: their output as a value, as lines while they come, or on this process's own terminal.

The API server's WebSocket protocol v4: the first byte of each message is a channel (input, output, errors, the end, the
size of the terminal). kubectl's newer v5 only adds a way to close the input, which is asked for where it is there.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from allranks.engines.kubernetes.client import CONNECT, Client
from allranks.engines.kubernetes.kinds import POD, Kind
from allranks.engines.kubernetes.refusals import Unreachable, refusal
from allranks.engines.kubernetes.wire import KEEPALIVE
from allranks.errors import EngineError

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

EXEC = Kind("v1", "Pod", "pods/exec")
STDIN, STDOUT, STDERR, END, SIZE = range(5)
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
OPEN, CLOSE = 3 * CONNECT, 1.0
"""Seconds for a session to begin, and to end once we hang up."""
MOST = 64 * 2**20
"""Bytes of one message, and of the output that is kept of a command."""

T = TypeVar("T")


@dataclass(frozen=True)
class Done:
    """What a command printed and how it ended; 128 + n where signal n ended it."""

    code: int
    output: str
    errors: str


class Session:
    """A command that runs in a pod. Reading and writing may be done by different threads.

    Its line is one thread's, with an event loop. With a thread that reads a TLS socket while another one writes to it
    (websockets' synchronous client, Python 3.11) the handshake of one session in some hundreds hung.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: ClientConnection) -> None:
        self._loop, self._socket = loop, socket
        self.code: int | None = None

    def read(self, timeout: float | None = None) -> tuple[int, bytes] | None:
        """The next piece of output with its channel; None when the command has ended (``code`` says how).

        Raises TimeoutError, and Unreachable when the line broke.
        """
        from websockets.exceptions import ConnectionClosed

        while True:
            try:
                message = _wait_for(self._loop, self._socket.recv(), timeout)
            except ConnectionClosed as closed:
                if self.code is None:
                    raise Unreachable(f"the line to the command in the pod broke: {closed}") from closed
                return None
            data = message.encode() if isinstance(message, str) else message
            if data[:1] == bytes([END]):
                self.code = _code(data[1:])
            elif len(data) > 1:
                return data[0], data[1:]

    def write(self, data: bytes) -> None:
        """Type something; silently nothing where the command has ended. Waits until there is room for it."""
        self._send(STDIN, data)

    def end_input(self) -> None:
        """Say that nothing more is typed, where the cluster can be told (Kubernetes 1.30 and later)."""
        if self._socket.subprotocol == PROTOCOLS[0]:
            self._send(255, bytes([STDIN]))

    def resize(self, columns: int, rows: int) -> None:
        """Tell the terminal's size."""
        self._send(SIZE, json.dumps({"Width": columns, "Height": rows}).encode())

    def close(self) -> None:
        """Hang up; who reads in another thread wakes up."""
        try:
            _wait_for(self._loop, self._socket.close(), 2 * CLOSE)
        except (TimeoutError, RuntimeError):
            pass  # the other side does not answer, or it was closed before

    def _send(self, channel: int, data: bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            _wait_for(self._loop, self._socket.send(bytes([channel]) + data), None)
        except ConnectionClosed:
            pass  # how it ended is for the reader to find


def _wait_for(loop: asyncio.AbstractEventLoop, doing: Coroutine[Any, Any, T], timeout: float | None) -> T:
    """Have the session's thread do it. Raises TimeoutError, and then it was not done."""
    if loop.is_closed():
        doing.close()
        raise RuntimeError("the session is over")
    done = asyncio.run_coroutine_threadsafe(doing, loop)
    try:
        return done.result(timeout)
    except FutureTimeoutError:
        done.cancel()
        raise TimeoutError from None


@contextmanager
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def session(
    client: Client, pod: str, container: str, argv: Sequence[str], namespace: str, *, stdin: bool = False,
    tty: bool = False,
) -> Iterator[Session]:  # fmt: skip
    """Start a command in a pod's container. Raises Refused, Missing, Unreachable."""
    said = {"stdin": stdin, "stdout": True, "stderr": not tty, "tty": tty}
    query = urlencode([("container", container), *((name, str(value).lower()) for name, value in said.items()),
                       *(("command", word) for word in argv)])  # fmt: skip
    with _loop() as loop:
        socket = _connect(client, loop, namespace, pod, query)
        running = Session(loop, socket)
        try:
            yield running
        finally:
            running.close()


def keep_alive(line: ClientConnection) -> None:
    """Have TCP ask whether the other side is there; a command that took no time may have closed the line already."""
    socket = line.transport.get_extra_info("socket")
    if socket is not None and socket.fileno() >= 0:
        for option in KEEPALIVE:
            socket.setsockopt(*option)


def _connect(client: Client, loop: asyncio.AbstractEventLoop, namespace: str, pod: str, query: str) -> ClientConnection:
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidHandshake, InvalidStatus
    from websockets.typing import Subprotocol

    access = client.access
    url = access.server.replace("http", "ws", 1) + f"{POD.path(namespace, pod, 'exec')}?{query}"
    options: dict[str, Any] = {"ssl": access.tls(), "server_hostname": access.server_name or None}

    async def dial() -> ClientConnection:
        line = await connect(
            url, additional_headers=access.headers(), subprotocols=[Subprotocol(name) for name in PROTOCOLS],
            open_timeout=OPEN, close_timeout=CLOSE, max_size=MOST, compression=None, ping_interval=None,
            proxy=access.proxy or None, **(options if url.startswith("wss") else {}),
        )  # fmt: skip
        keep_alive(line)
        return line

    try:
        return _wait_for(loop, dial(), 2 * OPEN)
    except InvalidStatus as error:
        answer = error.response
        raise refusal(
            answer.status_code, bytes(answer.body or b""), "create", EXEC, namespace, pod, access.context
        ) from error
    except (OSError, TimeoutError, InvalidHandshake) as error:
        raise client.unreachable(error) from error


def run(
    client: Client, pod: str, container: str, argv: Sequence[str], namespace: str, *, timeout: float = 20.0
) -> Done:
    """Run a command to its end. Raises EngineError, also when it takes longer than ``timeout`` seconds."""
    until = time.monotonic() + timeout
    said = {STDOUT: b"", STDERR: b""}
    with session(client, pod, container, argv, namespace) as running:
        try:
            while (piece := running.read(max(until - time.monotonic(), 0.001))) is not None:
                said[piece[0]] = said.get(piece[0], b"") + piece[1]
        except TimeoutError:
            raise EngineError(f"pod {pod} did not answer within {timeout:g} s") from None
        code = running.code if running.code is not None else 1
    return Done(code, said[STDOUT].decode(errors="replace"), said[STDERR].decode(errors="replace"))


class Lines(threading.Thread):
    """Keeps the newest line that a long command has printed, until it ends or is closed. ``came`` is called for it."""

    def __init__(
        self, client: Client, pod: str, container: str, argv: Sequence[str], namespace: str, came: Callable[[], None]
    ) -> None:
        super().__init__(daemon=True)
        self._asked = (client, pod, container, argv, namespace)
        self._came = came
        self.newest = ""
        self._session: Session | None = None
        self._closed = False
        self.start()

    def run(self) -> None:
        """Read until the end."""
        try:
            with session(*self._asked, stdin=True) as self._session:
                self._read(self._session)
        except EngineError:
            pass  # who looks at ``newest`` finds that nothing comes, and asks in another way

    def _read(self, running: Session) -> None:
        partial = b""
        while not self._closed and (piece := running.read()) is not None:
            if piece[0] == STDOUT:
                *whole, partial = (partial + piece[1]).split(b"\n")
                if whole:
                    self.newest = whole[-1].decode(errors="replace")
                    self._came()

    def close(self) -> None:
        """Hang up, which ends the command: its input is at its end."""
        self._closed = True
        if self._session is not None:
            self._session.close()


def _code(data: bytes) -> int:
    """The exit code that a Status object tells (k8s.io/kubernetes, pkg/kubelet, remotecommand v4)."""
    try:
        status = json.loads(data)
    except ValueError:
        return 1
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or ():
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    return 126 if "executable file not found" in str(status.get("message")) else 1
