"""Whether a Ray cluster answers at an address: asked before Ray's own library is, which tries for longer."""

from __future__ import annotations

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
