"""Whether a service can be used is its own word, and who does not say it may only be busy."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from allranks.serving.probe import answers, origin, status_of


@contextmanager
def server(said: bytes) -> Iterator[str]:
    """One that says this to whoever connects, and hangs up; or that says nothing."""

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            client.recv(1000)
            client.sendall(said)
            client.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        if said:
            threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/ready"
        listener.shutdown(socket.SHUT_RDWR)


def test_200_is_yes_and_all_else_is_no() -> None:
    for said, status in ((b"HTTP/1.1 200 OK", 200), (b"HTTP/1.1 503 No", 503), (b"SSH-2.0", 0)):
        with server(said + b"\r\ncontent-length: 0\r\n\r\n") as url:
            assert (status_of(url, 30), answers(url, 30)) == (status, status == 200)
    assert status_of(url, 30) == 0  # nobody is there any more


def test_one_that_takes_its_time_is_neither() -> None:
    with server(b"") as url:
        assert status_of(url, 0.2) is None


def test_where_it_answers_is_an_url_for_addresses_of_ipv6_too() -> None:
    assert origin("::1", 8000) == origin("[::1]", 8000) == "http://[::1]:8000"
    assert origin("127.0.0.1", 8000) == "http://127.0.0.1:8000"
