"""The ranks' own connections: who may be one, and how long they are waited for."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TOKEN = b"t" * 32


@contextlib.contextmanager
def listening() -> Iterator[tuple[socket.socket, int]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener, listener.getsockname()[1]


def test_ranks_are_who_know_the_token_and_no_one_else() -> None:
    from allranks.serving import peers

    with listening() as (listener, port), contextlib.ExitStack() as stack:
        for token, kind, rank in (
            (b"x" * 32, peers.PLAN, 1), (TOKEN, b"?", 1), (TOKEN, peers.PLAN, 7),
            (TOKEN, peers.PLAN, 1), (TOKEN, peers.LIFE, 1),
        ):  # fmt: skip
            stack.enter_context(peers._dial("127.0.0.1", port, token, kind, rank))
        met = peers._accept(listener, TOKEN, 2, time.monotonic() + 30)
        assert (list(met.plans), list(met.lives)) == ([1], [1])
        for connection in (*met.plans.values(), *met.lives.values()):
            connection.close()


def test_ranks_that_do_not_come_are_not_waited_for_as_long_as_strangers_do() -> None:
    from allranks.serving import peers

    over = threading.Event()
    with listening() as (listener, port), contextlib.ExitStack() as stack:
        for kind in (peers.PLAN, peers.LIFE):
            stack.enter_context(peers._dial("127.0.0.1", port, TOKEN, kind, 1))

        def come_and_go() -> None:
            while not over.is_set():
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as stranger:
                    stranger.sendall(b"x" * 37)

        thread = threading.Thread(target=come_and_go)
        thread.start()
        try:
            with pytest.raises(peers.Gone, match=r"of 2 other ranks 1 connected within 60 s"):
                peers._accept(listener, TOKEN, 3, time.monotonic() + 0.5)
        finally:
            over.set()
            thread.join(30)
