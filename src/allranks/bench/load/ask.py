"""One request as a client sees it: when its tokens came, and whether its answer is whole."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from allranks.bench.load.wire import Endpoint, Exchange, Failed

TEXT_LIMIT = 300
"""Characters that are kept of what a server says is wrong."""


@dataclass(frozen=True)
class Wish:
    """What to ask: a path such as /v1/completions, and the body."""

    path: str
    body: Mapping[str, Any]

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))


@dataclass
class Seen:
    """One request. Times are ``time.perf_counter`` seconds; ``chunks`` are those at which text came.

    ``error`` is empty for a whole answer, else: connect, cut (it ended before its end), malformed, timeout, deadline,
    ``http STATUS``, or stream (the server said in its stream that it failed). ``counted`` is False while tokens
    were not counted by the server: then each chunk is taken for one.
    """

    asked: float
    due: float = 0.0
    ended: float = 0.0
    chunks: list[float] = field(default_factory=list)
    text: str = ""
    tokens: int = 0
    prompt_tokens: int = 0
    counted: bool = False
    finish: str = ""
    error: str = ""
    message: str = ""

    @property
    def whole(self) -> bool:
        """Whether the answer is complete."""
        return bool(self.ended) and not self.error


async def ask(endpoint: Endpoint, wish: Wish, timeout: float, seen: Seen) -> None:
    """Ask once, and write down in ``seen`` what comes. Raises only when it is cancelled; then nothing has ended."""
    exchange = Exchange(endpoint)
    try:
        await asyncio.wait_for(_hear(exchange, wish, seen), timeout)
    except asyncio.TimeoutError:
        seen.error, seen.message = "timeout", f"no whole answer within {timeout:g} s"
    except Failed as failed:
        seen.error, seen.message = failed.kind, str(failed)
    finally:
        exchange.close()
    seen.ended = time.perf_counter()
    if not seen.counted:
        seen.tokens = len(seen.chunks)


async def _hear(exchange: Exchange, wish: Wish, seen: Seen) -> None:
    await exchange.ask("POST", wish.path, json.dumps(wish.body).encode())
    if exchange.status != 200:
        raise Failed(f"http {exchange.status}", await _said(exchange))
    if wish.streams:
        await _hear_stream(exchange, seen)
    else:
        _take(_json(await exchange.whole()), seen)
    if not seen.finish:
        raise Failed("cut", "the answer ended without a finish_reason")


async def _hear_stream(exchange: Exchange, seen: Seen) -> None:
    """Take server-sent events. What ends with neither ``[DONE]`` nor a finish_reason is cut, however politely."""
    async for line in exchange.lines():
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        _take(_json(data), seen)


def _take(value: Mapping[str, Any], seen: Seen) -> None:
    if value.get("error"):
        error = value["error"]
        raise Failed("stream", str(error.get("message") if isinstance(error, dict) else error)[:TEXT_LIMIT])
    try:
        _take_pieces(value, seen)
    except (LookupError, TypeError, AttributeError) as error:
        raise Failed("malformed", f"not as OpenAI's: {json.dumps(value)[:80]}") from error


def _take_pieces(value: Mapping[str, Any], seen: Seen) -> None:
    for choice in value.get("choices") or ():
        said = choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get("content") or ""
        seen.finish = choice.get("finish_reason") or seen.finish
        if said:
            seen.text += said
            seen.chunks.append(time.perf_counter())
    if usage := value.get("usage"):
        seen.tokens, seen.prompt_tokens = usage["completion_tokens"], usage["prompt_tokens"]
        seen.counted = True


def _json(data: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise Failed("malformed", f"not JSON: {data[:80]!r}") from error
    if not isinstance(value, dict):
        raise Failed("malformed", f"not an object: {data[:80]!r}")
    return value


async def _said(exchange: Exchange) -> str:
    """What the server says is wrong."""
    body = await exchange.whole()
    try:
        return str(json.loads(body)["error"]["message"])[:TEXT_LIMIT]
    except (ValueError, KeyError, TypeError):
        return body[:TEXT_LIMIT].decode("utf-8", "replace").strip()
