"""Answers as they go out: whole, or as server-sent events while they come."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from allranks.serving.front.errors import Refused
from allranks.serving.front.link import Event, Link, Live
from allranks.serving.front.texts import Spoken

SLOWEST = 60.0
"""Seconds that a reader may take for one chunk before it is given up, and its request cancelled."""


@dataclass
class Choice:
    """One answer so far."""

    spoken: Spoken
    text: str = ""
    count: int = 0
    finish: str = ""


@dataclass
class Answer:
    """A request on its way to being answered. ``prompt_tokens`` is a count, each prompt once."""

    link: Link
    live: Live
    choices: list[Choice]
    model: str
    prompt_tokens: int
    kind: str = "text_completion"
    number: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))
    _kept: Event | None = None

    async def pieces(self) -> AsyncIterator[tuple[int, str, str]]:
        """Yield index, text and how it ended (empty: not yet) as they come. Raises Refused when the gang breaks."""
        waiting = len(self.choices)
        while waiting:
            event = await self._next()
            choice = self.choices[event.index]
            if choice.finish:
                continue  # it was stopped; these tokens were on their way
            if event.error:
                self.link.metrics.errors.inc()
                raise Refused(503, event.error, code="answer_broken", retry=5)
            choice.count += len(event.tokens)
            text = choice.spoken.add(event.tokens, last=bool(event.finish))
            choice.finish = "stop" if choice.spoken.stopped else event.finish
            choice.text += text
            if choice.finish:
                waiting -= 1
                self.link.stop(self.live, event.index)
                self.link.metrics.whole.observe(time.monotonic() - self.live.began)
            if text or choice.finish:
                yield event.index, text, choice.finish

    async def _next(self) -> Event:
        """The next event; what has gathered behind it of the same answer comes along, as one."""
        events = self.live.events
        first = self._kept or await events.get()
        self._kept = None
        if first.finish or events.empty():
            return first
        tokens = list(first.tokens)
        while not events.empty() and self._kept is None:
            event = events.get_nowait()
            if event.index != first.index or event.error:
                self._kept = event
                break
            tokens += event.tokens
            if event.finish:
                return Event(first.index, tokens, event.finish)
        return Event(first.index, tokens)

    async def whole(self, receive: Receive) -> bool:
        """Wait until it is complete; False when the client has gone, and the request with it."""
        computing = asyncio.ensure_future(self._all())
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait([computing, leaving], return_when=asyncio.FIRST_COMPLETED)
            if computing.done():
                computing.result()
            return computing.done()
        finally:
            computing.cancel()
            leaving.cancel()
            self.link.stop(self.live)

    async def _all(self) -> None:
        async for _ in self.pieces():
            pass

    def usage(self) -> dict[str, int]:
        """Tokens in, out, and together."""
        new = sum(choice.count for choice in self.choices)
        together = self.prompt_tokens + new
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": new, "total_tokens": together}

    # ---- OpenAI's shapes

    @property
    def _is_chat(self) -> bool:
        return self.kind == "chat.completion"

    def _shaped(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{self.number}", "created": self.created}
        return {**head, "model": self.model, "object": kind, "choices": choices}

    def body(self) -> dict[str, Any]:
        """The whole answer."""
        choices = [_choice(index, self._whole(one.text), one.finish) for index, one in enumerate(self.choices)]
        return {**self._shaped(self.kind, choices), "usage": self.usage()}

    def _whole(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}} if self._is_chat else {"text": text}

    def chunk(self, index: int, text: str, finish: str) -> dict[str, Any]:
        """A piece of it."""
        said = {"delta": {"content": text} if text else {}} if self._is_chat else {"text": text}
        return self._chunk(_choice(index, said, finish or None))

    def first_chunks(self) -> list[dict[str, Any]]:
        """In a chat the role comes before the text."""
        role = {"delta": {"role": "assistant", "content": ""}}
        return [self._chunk(_choice(index, role, None)) for index in range(len(self.choices))] if self._is_chat else []

    def last_chunk(self) -> dict[str, Any]:
        """Only the count of tokens."""
        return {**self._chunk(), "usage": self.usage()}

    def _chunk(self, *choices: dict[str, Any]) -> dict[str, Any]:
        return self._shaped("chat.completion.chunk" if self._is_chat else self.kind, list(choices))


def _choice(index: int, said: dict[str, Any], finish: str | None) -> dict[str, Any]:
    return {"index": index, **said, "logprobs": None, "finish_reason": finish}


class Events(Response):
    """A response of server-sent events that ends with ``[DONE]``, whatever happens on the way.

    A stream that only stopped could be taken for a complete one: what breaks it is a chunk of its own.
    """

    def __init__(self, answer: Answer, usage: bool) -> None:
        self.status_code, self.background = 200, None
        self._answer, self._usage = answer, usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        writing = asyncio.ensure_future(self._write(send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait([writing, leaving], return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        finally:
            writing.cancel()
            leaving.cancel()
            self._answer.link.stop(self._answer.live)

    async def _write(self, send: Send) -> None:
        answer = self._answer
        try:
            for chunk in answer.first_chunks():
                await _chunk(send, chunk)
            async for index, text, finish in answer.pieces():
                await _chunk(send, answer.chunk(index, text, finish))
            if self._usage:
                await _chunk(send, answer.last_chunk())
        except Refused as refused:
            await _chunk(send, refused.body())
        except (OSError, asyncio.TimeoutError):
            return  # the reader has gone, or does not read
        await _send(send, b"data: [DONE]\n\n", more=False)


async def _chunk(send: Send, value: Any) -> None:
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    await _send(send, f"data: {data}\n\n".encode("utf-8", "replace"))


async def _send(send: Send, data: bytes, more: bool = True) -> None:
    async with asyncio.timeout(SLOWEST):  # wait_for would make a task of every piece
        await send({"type": "http.response.body", "body": data, "more_body": more})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
