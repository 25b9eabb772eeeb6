"""Who begins a request has to end its head, also on a connection that was answered before."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi")

from allranks.serving.front import connection

ASKED = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    if scope["path"] == "/endless":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await receive())["type"] != "http.disconnect":
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
        return
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    import uvicorn

    monkeypatch.setattr(connection, "HEAD_WAIT", 0.5)
    settings = {"lifespan": "off", "log_level": "warning", "timeout_keep_alive": 60}
    server = uvicorn.Server(uvicorn.Config(nothing, http=connection.Connection, **settings))  # type: ignore[arg-type]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(30)


@pytest.mark.parametrize("before", [0, 1])
def test_a_head_that_comes_in_pieces_without_end_is_refused(port: int, before: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        for _ in range(before):
            client.sendall(ASKED)
            assert b"204" in client.recv(1000)
        client.sendall(ASKED[:20])
        assert b"HTTP/1.1 408" in client.recv(1000)
        assert client.recv(1000) == b""


def test_one_that_was_answered_may_be_silent_for_longer(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        for _ in range(3):
            client.sendall(ASKED[:20])
            time.sleep(0.1)
            client.sendall(ASKED[20:])
            assert b"204" in client.recv(1000)
            time.sleep(0.8)


def test_what_is_no_http_is_told_in_the_shape_of_openai(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(b"\x16\x03\x01\r\n\r\n")
        head, body = received(client).split(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_an_answer_that_has_begun_is_broken_off_for_who_goes_on_with_no_http(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(b"GET /endless HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert b"200" in client.recv(1000)
        client.sendall(b"\x16\x03\x01")
        assert b"400" not in received(client)
    assert not [record for record in caplog.records if record.exc_info]


def received(client: socket.socket) -> bytes:
    """All until the end."""
    return b"".join(iter(lambda: client.recv(65536), b""))
