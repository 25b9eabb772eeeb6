"""How many connections there may be, and how long one may take to say what it wants."""

from __future__ import annotations

import asyncio
import json
import resource

from uvicorn.protocols.http.h11_impl import H11Protocol

from allranks.serving.front.errors import Refused

SPARE = 256
"""Files that this process may have open besides connections; its own are a few dozen."""
HEAD_WAIT = 10.0
"""Seconds for the first request of a connection to have come, but for its body."""
FULL = Refused(503, "there are too many connections already", code="too_many_connections", retry=5)
SILENT = Refused(408, f"no request came within {HEAD_WAIT:g} s", code="request_timeout")
REASONS = {408: "Request Timeout", 503: "Service Unavailable"}


class Connection(H11Protocol):
    """uvicorn's, but it tells those who are too many, and hangs up on those who say nothing.

    Without it the process would run out of files, and then answer nobody, not even its probes.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it, or refuse it."""
        super().connection_made(transport)
        if len(self.connections) > resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE:
            self._refuse(FULL)
        else:
            self.loop.call_later(HEAD_WAIT, self._must_have_asked)

    def _must_have_asked(self) -> None:
        if self.cycle is None:
            self._refuse(SILENT)

    def _refuse(self, refused: Refused) -> None:
        if not self.transport.is_closing():
            self.transport.write(_whole_answer(refused))
            self.transport.close()


def _whole_answer(refused: Refused) -> bytes:
    """The answer as bytes: there is no request yet that a framework could answer."""
    body = json.dumps(refused.body()).encode()
    lines = [
        f"HTTP/1.1 {refused.status} {REASONS[refused.status]}", "content-type: application/json",
        f"content-length: {len(body)}", "connection: close",
        *(f"{name}: {value}" for name, value in refused.headers().items()), "", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + body
