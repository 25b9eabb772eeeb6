"""How many connections there may be, and how long one may take to say what it wants."""

from __future__ import annotations

import asyncio
import json
import resource
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from allranks.serving.front.errors import Refused

SPARE = 256
"""Files that this process may have open besides connections; its own are a few dozen."""
HEAD_WAIT = 10.0
"""Seconds for a connection's first request to have come, but for its body, and for each later one that has begun to."""
FULL = Refused(503, "there are too many connections already", code="too_many_connections", retry=5)
SILENT = Refused(408, f"no request came within {HEAD_WAIT:g} s", code="request_timeout")
NO_HTTP = Refused(400, "this is no HTTP/1.1 request, or its head is too long")
REASONS = {400: "Bad Request", 408: "Request Timeout", 503: "Service Unavailable"}


class Connection(H11Protocol):
    """uvicorn's, but it tells those who are too many, and hangs up on those who say nothing.

    Without it the process would run out of files, and then answer nobody, not even its probes.
    """

    _waits = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it, or refuse it."""
        super().connection_made(transport)
        if len(self.connections) > resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE:
            self._refuse(FULL)
        else:
            self._wait_for_request()

    def data_received(self, data: bytes) -> None:
        """Uvicorn stops its clock for idle connections at the first byte of a request's head."""
        super().data_received(data)
        if not self._waits and self._has_begun:
            self._wait_for_request()

    @property
    def _has_begun(self) -> bool:
        """Whether there is a part of a head."""
        return self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])

    def _wait_for_request(self) -> None:
        self._waits = True
        self.loop.call_later(HEAD_WAIT, self._must_have_asked, self.cycle)

    def _must_have_asked(self, before: Any) -> None:
        self._waits = False
        if self.cycle is before:
            self._refuse(SILENT)
        elif self._has_begun:
            self._wait_for_request()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn does with that which is no HTTP: an answer that has begun can only be broken off."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._refuse(NO_HTTP)
        else:
            self.transport.close()

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
