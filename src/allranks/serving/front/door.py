"""What every request passes, before anything of it is believed: its number, its key, its size."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import uuid
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from allranks.serving.front.errors import Refused, answer
from allranks.serving.front.metrics import Metrics

OPEN = ("/", "/health", "/ready", "/metrics")
"""Paths that need no key: probes and scrapers have none, and the page asks for it."""
HEARD, PATIENCE = 64 * 2**20, 5.0
"""Bytes and seconds of a refused request that are taken in before the answer."""
BODY_WAIT = 30.0
"""Seconds for the next piece of a body."""
REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class Door:
    """ASGI middleware. ``key`` empty means that anybody may come in; ``most`` is the size of a body in bytes."""

    def __init__(self, app: ASGIApp, key: str, most: int, metrics: Metrics, paths: frozenset[str]) -> None:
        self._app, self._most, self._metrics, self._paths = app, most, metrics, paths
        self._key = hashlib.sha256(key.encode()).digest() if key else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        number = given if REQUEST_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}".encode()
        scope.setdefault("state", {})["number"] = number.decode()

        async def numbered(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"x-request-id", number)]
                path = scope["path"] if scope["path"] in self._paths else "other"
                self._metrics.requests.labels(path, message["status"]).inc()
            await send(message)

        refused = self._refusal(scope, headers)
        if refused:
            await _hear_out(receive)
            await answer(refused)(scope, receive, numbered)
            return
        if scope["method"] == "HEAD":  # as GET; the server leaves the body out
            scope = {**scope, "method": "GET"}
        await self._app(scope, _Measured(receive, self._most), numbered)

    def _refusal(self, scope: Scope, headers: MutableMapping[bytes, bytes]) -> Refused | None:
        if self._key and scope["path"] not in OPEN and not self._knows(headers):
            return Refused(401, "no valid key; send it as 'Authorization: Bearer KEY'", code="invalid_api_key")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > self._most:
            return too_large(self._most)
        return None

    def _knows(self, headers: MutableMapping[bytes, bytes]) -> bool:
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        found = hashlib.sha256(key.strip()).digest()
        return scheme.lower() == b"bearer" and hmac.compare_digest(found, self._key)


async def _hear_out(receive: Receive) -> None:
    """Take in what is still being sent: who is hung up on in the midst of it sees a broken pipe, and no answer."""
    left, until = HEARD, asyncio.get_running_loop().time() + PATIENCE
    while left > 0:
        try:
            message = await asyncio.wait_for(receive(), until - asyncio.get_running_loop().time())
        except asyncio.TimeoutError:
            return
        if not message.get("more_body"):
            return
        left -= len(message.get("body", b""))


def too_large(most: int) -> Refused:
    """A body that is larger than ``most`` bytes."""
    return Refused(413, f"the body is larger than {most} bytes, the limit of this service", code="body_too_large")


class _Measured:
    """Counts what comes in, where no header told its size, and does not wait for ever for the rest of it."""

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive, self._left, self._most = receive, most, most
        self._more = True

    async def __call__(self) -> Any:
        try:  # once all of it is there, what is awaited is the client's leaving
            message = await asyncio.wait_for(self._receive(), BODY_WAIT if self._more else None)
        except asyncio.TimeoutError:
            raise Refused(408, f"the body was not complete: nothing came for {BODY_WAIT:g} s") from None
        if message["type"] == "http.request":
            self._more = bool(message.get("more_body"))
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                if self._more:
                    await _hear_out(self._receive)
                raise too_large(self._most)
        return message
