"""Whether a port can be had, before anything is started for it."""

from __future__ import annotations

import os
import socket

import pytest

from allranks.engines.port import must_be_free
from allranks.errors import EngineError


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_port_that_somebody_listens_on_is_named_with_who_does_and_the_way_out(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as theirs:
        port = theirs.getsockname()[1]
        said = f"^port {port} of {host} cannot be had: process {os.getpid()} listens there: .*; end it, or choose ano"
        with pytest.raises(EngineError, match=said):
            must_be_free(host, port)
    must_be_free(host, port)


@pytest.mark.parametrize("host", ["203.0.113.7", "a..b"])
def test_what_is_no_host_of_this_machine_is_refused(host: str) -> None:
    with pytest.raises(EngineError, match=rf"port 8000 of {host} cannot be had: .*; choose another port or host"):
        must_be_free(host, 8000)
