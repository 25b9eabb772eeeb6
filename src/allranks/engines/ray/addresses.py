"""What is known of addresses before Ray is: whether a cluster answers at one, and whether a port is free."""

from __future__ import annotations

import errno
import os
import socket

from allranks.errors import EngineError

REACH = 5.0
"""Seconds for a head to take a connection; Ray's own library tries for more than a minute."""


def must_be_there(address: str) -> None:
    """Raises EngineError where no head of a Ray cluster can be at ``HOST:PORT``; ``auto`` is for Ray to find."""
    if "://" in address:
        raise EngineError(f"{address} is for Ray's clients, which cannot start Serve; name the head's own: HOST:6379")
    host, colon, port = address.rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH).close()
    except (OSError, ValueError, OverflowError) as error:
        raise EngineError(
            f"the Ray cluster at {address} (engines.ray.address, or RAY_ADDRESS) cannot be reached: {error}; start it, "
            "or name none to have one started on this machine"
        ) from error


def must_be_free(host: str, port: int) -> None:
    """Raises EngineError where Serve could not listen there."""
    try:
        (family, *_, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what ended a moment ago is no hindrance
            probe.bind(address)
    except OSError as error:
        way = (
            "end what listens there, or choose another one" if error.errno == errno.EADDRINUSE else "choose another one"
        )
        found = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise EngineError(
            f"port {port} of {host} cannot be had: {found}; {way} (--port, --host, engines.ray.port)"
        ) from error
