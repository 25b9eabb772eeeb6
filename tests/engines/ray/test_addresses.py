"""Whether a cluster answers, before Ray looks for it."""

from __future__ import annotations

import socket

import pytest

from allranks.engines.ray.addresses import must_be_there
from allranks.errors import EngineError


def test_a_cluster_that_does_not_answer_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as theirs:
        port = theirs.getsockname()[1]
        must_be_there(f"127.0.0.1:{port}")
    with pytest.raises(EngineError, match=rf"the Ray cluster at 127.0.0.1:{port} .*Connection refused; start it, or "):
        must_be_there(f"127.0.0.1:{port}")
    must_be_there("auto")  # Ray finds it, or says that there is none


@pytest.mark.parametrize("address", ["ray://head:10001", "http://head:8265"])
def test_what_is_no_heads_own_address_is_refused(address: str) -> None:
    with pytest.raises(EngineError, match="is for Ray's clients, which cannot start Serve; name the head's own"):
        must_be_there(address)


@pytest.mark.parametrize("address", ["127.0.0.1:port", "127.0.0.1:700000", "127.0.0.1:-1"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(EngineError, match="cannot be reached"):
        must_be_there(address)
