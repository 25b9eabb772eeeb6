"""The service's one door: it takes requests to a gang that serves, and never lets a broken answer look complete.

Serve itself keeps a request waiting while it replaces the only replica that could answer, and ends a stream whose
replica died without a word. So the gangs' coordinators answer no requests: this does, and it is there all the time.
It also holds what must outlive a gang: the seats with what was used up, the causes, and the newest lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import yarl
from starlette.types import Message, Receive, Scope, Send

from allranks.engines.ray.seats import Seat, Seats
from allranks.serving.front.errors import Refused
from allranks.spec.service import KEY_VARIABLE

CONNECT, PROBE = 2.0, 1.5
"""Seconds to reach a gang's node 0, and for its answer to a probe."""
MOST_LINES = 20_000
HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade host".split()
)
"""Headers that are between two neighbours alone (RFC 9110, 7.6.1), and the host's name."""
SERVES = frozenset([b"date", b"server", b"x-request-id"])
"""Headers of an answer that Serve's proxy writes itself; the request's number is the one that it gave us."""


class Door:
    """ASGI, and what coordinators call. ``told`` is what the plan says of the service (``plan.told``)."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.seats = Seats(told)
        self.seats.key = os.environ.get(KEY_VARIABLE, "")
        self._lines: deque[list[Any]] = deque(maxlen=MOST_LINES)
        self._count = 0
        self._session: aiohttp.ClientSession | None = None
        self._passing: set[_Passing] = set()

    # ---- coordinators

    def join(self, gang: str) -> dict[str, Any]:
        """A seat for a new gang (``Seats.join``)."""
        found = self.seats.join(gang)
        self._let_go()
        return found

    def report(self, gang: str, report: dict[str, Any]) -> None:
        """What a coordinator tells: ``status``, ``address``, ``lines`` and how it ends, if it does."""
        seat = self.seats.hear(gang, report)
        for line in report.get("lines", ()):
            self._count += 1
            self._lines.append([seat, *line])
        self._let_go()

    def _let_go(self) -> None:
        """End requests to gangs that are gone: where a host has lost its power, no connection tells."""
        there = {seat.gang for seat in self.seats.taken()}
        for passing in self._passing:
            if passing.gang not in there:
                passing.lost.set()

    def lines(self, since: int) -> dict[str, Any]:
        """Lines from number ``since`` on, as (gang, attempt, node, rank, text); how many are gone; the next number."""
        first = self._count - len(self._lines)
        return {"lines": list(self._lines)[max(since - first, 0) :], "lost": max(first - since, 0), "next": self._count}

    # ---- HTTP

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not spoken here")
        path = scope["path"][len(scope.get("root_path", "")) :] or "/"
        if path == "/health" or path == self.seats.ready_path:
            await self._probed(path, send)
        else:
            await self._pass(path, scope, receive, send)

    async def _pass(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        seat = self.seats.pick()
        if seat is None:
            await _refuse(send, self._not_ready())
            return
        passing = _Passing(self._client(), seat, path, scope, receive, send)
        self._passing.add(passing)
        seat.busy += 1
        try:
            await passing.run()
        finally:
            seat.busy -= 1
            self._passing.remove(passing)

    def _not_ready(self) -> Refused:
        return Refused(503, f"no gang of the service can answer: {self.seats.why()}", code="gang_broken", retry=5)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=CONNECT)
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=timeout, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session

    # ---- state

    async def _probed(self, path: str, send: Send) -> None:
        """The first gang's good answer; else why there is none."""
        said: tuple[int, bytes] = 503, json.dumps({"state": "broken", "reason": self.seats.why()}).encode()
        for seat in self.seats.taken():
            if seat.silent:
                continue
            said = await self._ask(seat, path)
            if said[0] == 200:
                seat.ready = seat.ready or path == self.seats.ready_path  # who is told so may ask at once
                break
        await _whole(send, *said)

    async def _ask(self, seat: Seat, path: str) -> tuple[int, bytes]:
        why = seat.why_not() if not seat.serves else "its node 0 does not answer"
        if seat.address:
            try:
                timeout = aiohttp.ClientTimeout(total=PROBE)
                async with self._client().get(f"http://{seat.address}{path}", timeout=timeout) as found:
                    return found.status, await found.read()
            except (aiohttp.ClientError, asyncio.TimeoutError):
                pass  # the answer says so
        return 503, json.dumps({"state": "starting" if not seat.ready else "broken", "reason": why}).encode()


class _Passing:
    """One request on its way to a gang and its answer on the way back."""

    def __init__(
        self, client: aiohttp.ClientSession, seat: Seat, path: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._client, self._seat, self._scope, self._receive, self._send = client, seat, scope, receive, send
        query = scope["query_string"].decode("latin-1")
        raw = scope.get("raw_path") or path.encode()
        root = scope.get("root_path", "").encode()
        path = raw[len(root) :].decode("latin-1") if raw.startswith(root) else path
        self._url = yarl.URL(
            f"http://{seat.address}{path.split('?')[0]}" + (f"?{query}" if query else ""), encoded=True
        )
        self.gang, self.lost = seat.gang, asyncio.Event()
        self._heard_all = asyncio.Event()
        self._began = self._events = False
        self._end = b""

    async def run(self) -> None:
        """Pass it on; a client that leaves takes its request along, and so does a gang that is ``lost``."""
        ways = self._exchange(), self._client_leaves(), self.lost.wait()
        tasks = [asyncio.ensure_future(way) for way in ways]
        passing, leaving, _ = tasks
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not passing.done():
                passing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await passing
            if passing.cancelled() and not leaving.done():
                await self._broke(ConnectionError("the gang was lost"))
        finally:
            for task in tasks:
                task.cancel()

    async def _client_leaves(self) -> None:
        await self._heard_all.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _exchange(self) -> None:
        headers = [(name.decode("latin-1"), value.decode("latin-1"))
                   for name, value in self._scope["headers"] if name.lower() not in HOP]  # fmt: skip
        try:
            async with self._client.request(
                self._scope["method"], self._url, headers=headers, data=self._body(), allow_redirects=False,
            ) as answer:  # fmt: skip
                await self._answer(answer)
        except (aiohttp.ClientError, asyncio.TimeoutError, ConnectionError) as error:
            await self._broke(error)

    def _body(self) -> AsyncIterator[bytes] | None:
        names = {name.lower() for name, _ in self._scope["headers"]}
        if not names & {b"content-length", b"transfer-encoding"}:
            self._heard_all.set()
            return None
        return self._pieces()

    async def _pieces(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ConnectionResetError("the client left")
            more = message.get("more_body", False)
            if message.get("body"):
                yield message["body"]
        self._heard_all.set()

    async def _answer(self, answer: aiohttp.ClientResponse) -> None:
        kept = [(name.lower(), value) for name, value in answer.raw_headers if name.lower() not in HOP | SERVES]
        self._events = answer.content_type == "text/event-stream"
        self._began = True
        await self._send({"type": "http.response.start", "status": answer.status, "headers": kept})
        async for piece in answer.content.iter_any():
            self._end = piece[-2:]
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        self._heard_all.set()
        await self._send({"type": "http.response.body", "body": b""})

    async def _broke(self, error: BaseException) -> None:
        """The gang, or its end of the connection, is gone. A stream of events says so in its last one."""
        reason = self._seat.lost or ("its coordinator was lost" if self.lost.is_set() else "its node 0 hung up")
        what = "the service ends" if self._seat.ends else f"the gang broke, and starts again: {reason}"
        refused = Refused(503, what, code="answer_broken", retry=5)
        if not self._began:
            await _refuse(self._send, refused)
        elif self._events:
            gap = b"" if self._end == b"\n\n" or not self._end else b"\n\n"
            last = b"data: " + json.dumps(refused.body()).encode() + b"\n\ndata: [DONE]\n\n"
            await self._send({"type": "http.response.body", "body": gap + last})
        else:
            raise error  # the connection ends without its last chunk, or short of its length


async def live(receive: Receive, send: Send) -> None:
    """An application's start and end, which ask for nothing."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _refuse(send: Send, refused: Refused) -> None:
    headers = [(name.encode(), value.encode()) for name, value in refused.headers().items()]
    await _whole(send, refused.status, json.dumps(refused.body()).encode(), headers)


async def _whole(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    about = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *(headers or [])]
    start: Message = {"type": "http.response.start", "status": status, "headers": about}
    await send(start)
    await send({"type": "http.response.body", "body": body})
