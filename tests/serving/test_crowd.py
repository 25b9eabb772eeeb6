"""Clients that do not read, do not ask, or are too many: they get their due, and the others their answers."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks.node import processes
from tests.serving.conftest import KEY
from tests.serving.service import Serving, wait

pytest.importorskip("transformers")
pytestmark = [pytest.mark.gang, pytest.mark.torch]
HELD = {"authorization": f"Bearer {KEY}"}
MANY = 10_000


def connect(service: Serving, size: int = 0) -> socket.socket:
    found = socket.socket()
    if size:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    found.settimeout(60)
    found.connect(("127.0.0.1", service.port))
    return found


def request(**body: object) -> bytes:
    data = json.dumps({"temperature": 0, **body}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(data)}"
    return f"{head}\r\ncontent-type: application/json\r\n\r\n".encode() + data


def front(service: Serving) -> int:
    """The process that has the port."""
    found = processes.listener(service.port)
    assert found is not None
    return found[0]


def memory(pid: int) -> int:
    """Bytes in use."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def answers(service: Serving) -> bool:
    status, body = service.ask("/v1/completions", {"prompt": "The for", "max_tokens": 3, "temperature": 0}, **HELD)
    return (status, body["usage"]["completion_tokens"]) == (200, 3)


@contextlib.contextmanager
def crowd(service: Serving, count: int) -> Iterator[list[socket.socket]]:
    """So many connections that ask nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count + 500:
        pytest.skip(f"this process may have {hard} files open: too few for {count} connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        yield [stack.enter_context(connect(service)) for _ in range(count)]


def test_who_does_not_read_holds_up_nobody_and_takes_no_memory(service: Serving) -> None:
    before = memory(front(service))
    with contextlib.ExitStack() as stack:
        for number in range(6):
            slow = stack.enter_context(connect(service, size=2048))
            slow.sendall(request(prompt=f"a {number}", max_tokens=480, n=1, stream=True))
        assert answers(service)
        wait("what nobody reads is computed, and waits", lambda: service.ask("/health")[1]["running"] == 0)
        assert answers(service)
        assert memory(front(service)) - before < 64 * 2**20
    assert service.ready()


def test_who_hangs_up_one_side_or_sends_half_a_request_leaves_nothing_running(service: Serving) -> None:
    with connect(service) as half, connect(service) as silent, connect(service) as torn:
        half.sendall(request(prompt="a", max_tokens=500, stream=True))
        half.shutdown(socket.SHUT_WR)
        torn.sendall(request(prompt="a", max_tokens=500)[:-5])
        torn.shutdown(socket.SHUT_WR)
        while half.recv(65536):
            pass  # an answer or none, but an end
        assert b"HTTP/1.1 408" in silent.recv(1000)  # it said nothing at all
        assert torn.recv(1000) == b""
    wait("nothing runs on", lambda: service.ask("/health")[1]["running"] == 0)
    assert answers(service)


def test_ten_thousand_connections_are_held_while_others_are_answered(service: Serving) -> None:
    with crowd(service, MANY):
        assert answers(service)
        assert service.ready()
    assert answers(service)


def test_connections_beyond_the_limit_of_files_are_told_to_come_again(service: Serving) -> None:
    pid = front(service)
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (400, hard))
    try:
        with crowd(service, 300) as held:
            told = held[-1].recv(1000)
            assert b"HTTP/1.1 503" in told
            assert b"retry-after: 5" in told
            assert b"too_many_connections" in told
            until = time.monotonic() + 60  # who says nothing is hung up on, and there is room again
            while time.monotonic() < until and not service.ready():
                time.sleep(0.5)
            assert answers(service)
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
