"""Whether a service of this machine can have its port, asked before anything is started for it."""

from __future__ import annotations

import errno
import socket

from allranks.errors import EngineError, system_reason
from allranks.node import processes


def must_be_free(host: str, port: int) -> None:
    """Raises EngineError where nothing of this machine could listen there, and names the process that does."""
    try:
        (family, *_, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what ended a moment ago is no hindrance
            probe.bind(address)
    except (OSError, UnicodeError) as error:  # the latter for what is no name at all
        raise EngineError(f"port {port} of {host} cannot be had: {_why(error, port)} (--port, --host)") from error


def _why(error: OSError | UnicodeError, port: int) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        holder = processes.listener(port)
        found = f"process {holder[0]} listens there: {holder[1]}" if holder else "another process listens there"
        return f"{found}; end it, or choose another port"
    return f"{system_reason(error)}; choose another port or host"
