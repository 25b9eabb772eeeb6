"""What is known before Ray is: whether a cluster answers, and whether the port can be had."""

from __future__ import annotations

import socket

import pytest

from allranks.engines.ray.addresses import must_be_free, must_be_there
from allranks.errors import EngineError


def test_a_port_that_somebody_listens_on_is_named_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as theirs:
        port = theirs.getsockname()[1]
        with pytest.raises(
            EngineError, match=rf"^port {port} of 127.0.0.1 cannot be had: Address already in use; end "
        ):
            must_be_free("127.0.0.1", port)
    must_be_free("127.0.0.1", port)


def test_an_address_that_is_no_host_of_this_machine_is_refused() -> None:
    with pytest.raises(EngineError, match=r"port 8000 of 203.0.113.7 cannot be had: .*; choose another one"):
        must_be_free("203.0.113.7", 8000)


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
