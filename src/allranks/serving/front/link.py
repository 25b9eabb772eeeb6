"""The front's end of the pipe: what rank 0 says, and the requests that wait for tokens."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from dataclasses import dataclass, field
from typing import Any

from allranks.serving.front.errors import Refused
from allranks.serving.front.metrics import Metrics
from allranks.serving.options import Options
from allranks.serving.pipe import encode

NO_TOKEN = [-1]
SILENT = 3.0
"""Seconds without news of rank 0 after which the gang is not healthy."""


@dataclass(frozen=True)
class Event:
    """New tokens of one answer of a request. ``finish`` is empty while there are more to come."""

    index: int
    tokens: list[int]
    finish: str = ""
    error: str = ""


@dataclass
class Awaited:
    """Where the tokens of one answer go, and when the last ones came."""

    live: Live
    index: int
    last: float | None = None


@dataclass
class Live:
    """A request that is being answered; several answers share one queue of events. Tokens of ``eos`` end an answer."""

    eos: list[int]
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    open: dict[str, int] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)


class Link:
    """What the front knows of the gang, and its way to the loop."""

    def __init__(self, options: Options, metrics: Metrics, eos: list[int]) -> None:
        self.options, self.metrics, self._eos = options, metrics, eos
        self.state, self.text = "starting", "starting"
        self.context = self.vocabulary = 0
        self.broken = ""
        self.news: dict[str, Any] = {}
        self._heard = self._moved = time.monotonic()
        self._where: dict[str, Awaited] = {}
        self._names = itertools.count()
        self._writer: asyncio.StreamWriter | None = None

    # ---- how the gang is

    @property
    def ready(self) -> bool:
        """Whether requests are taken."""
        return self.state == "ready" and not self.broken

    def unhealthy(self) -> str:
        """Why the gang is not healthy, or nothing: loading counts as healthy, a loop that stands still does not."""
        if self.broken:
            return self.broken
        if self.state != "ready":
            return ""
        now = time.monotonic()
        if now - self._heard > SILENT:
            return f"rank 0 has said nothing for {now - self._heard:.1f} s"
        if now - self._moved > SILENT + self.options.stall:
            return f"its loop has stood still for {now - self._moved:.1f} s"
        return ""

    @property
    def silence(self) -> float:
        """Seconds without news of a rank 0 that serves; before that it may have no time for any."""
        return time.monotonic() - self._heard if self.state == "ready" else 0.0

    def excuse(self) -> None:
        """Begin to count silence anew, as nobody listened."""
        self._heard = self._moved = time.monotonic()

    def must_be_ready(self) -> None:
        """Raise Refused where no request can be taken."""
        if self.broken:
            raise Refused(503, f"the gang is broken, and starts again: {self.broken}", code="gang_broken", retry=5)
        if self.state == "draining":
            raise Refused(503, "the service is ending", code="draining", retry=5)
        if self.state != "ready":
            raise Refused(503, f"the model is not ready: {self.text}", code="not_ready", retry=5)
        if reason := self.unhealthy():
            raise Refused(503, f"the gang does not answer: {reason}", code="gang_stuck", retry=5)

    # ---- requests

    def submit(
        self, prompts: list[list[int]], limit: int, samplings: list[dict[str, Any]], *, endless: bool = False
    ) -> Live:
        """Ask for one answer for each prompt, once ``must_be_ready`` passed. Raises Refused for too many.

        No token ends an ``endless`` one.
        """
        most = self.options.concurrent + self.options.queue
        if len(self._where) + len(prompts) > most:
            self.metrics.rejected.inc()
            message = f"{len(self._where)} answers are being computed or awaited, and {most} is the limit; try again"
            raise Refused(429, message, code="queue_full", retry=1)
        live = Live(NO_TOKEN if endless else self._eos)
        for index, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True)):
            name = f"r{next(self._names)}"
            live.open[name] = index
            self._where[name] = Awaited(live, index)
            self._tell(op="add", id=name, prompt=prompt, max_tokens=limit, eos=live.eos, sampling=sampling)
        return live

    def stop(self, live: Live, index: int | None = None) -> None:
        """End one answer of a request, or all that it still waits for."""
        for name in [name for name, number in live.open.items() if index in (None, number)]:
            del live.open[name], self._where[name]
            self._tell(op="cancel", id=name)

    def _tell(self, **message: Any) -> None:
        if self._writer is not None and not self.broken:
            self._writer.write(encode(message))

    # ---- what rank 0 says

    async def listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Follow rank 0 until it ends."""
        self._writer = writer
        while self.state != "ended" and (line := await reader.readline()):
            message = json.loads(line)
            self._heard = time.monotonic()
            getattr(self, f"_on_{message['op']}")(message)
        if self.state != "ended":
            self.give_up("rank 0 has ended")

    def _on_state(self, message: dict[str, Any]) -> None:
        self.state, self.text = message["state"] if message["state"] != "ready" else self.state, message["text"]

    def _on_ready(self, message: dict[str, Any]) -> None:
        self.context, self.vocabulary = message["context"], message["vocabulary"]
        self.state, self._moved = "ready", time.monotonic()

    def _on_news(self, message: dict[str, Any]) -> None:
        if message["beats"] != self.news.get("beats"):
            self._moved = time.monotonic()
        self.news = message
        self.metrics.follow(message)
        self._tell(op="here")

    def _on_out(self, message: dict[str, Any]) -> None:
        now = time.monotonic()
        for name, tokens, over, error in message["out"]:
            awaited = self._where.get(name)
            if awaited is None:
                continue  # it was cancelled
            self.metrics.token(now, awaited.live.began, awaited.last, len(tokens))
            awaited.last, finish = now, ""
            if over:
                del self._where[name], awaited.live.open[name]
                finish = "error" if error else "stop" if tokens and tokens[-1] in awaited.live.eos else "length"
            awaited.live.events.put_nowait(Event(awaited.index, tokens, finish, error))

    def _on_drain(self, _: dict[str, Any]) -> None:
        self.state = self.text = "draining"

    def _on_end(self, _: dict[str, Any]) -> None:
        self._fail("the service has ended before the answer was complete")
        self.state = "ended"

    def _on_broken(self, message: dict[str, Any]) -> None:
        self.give_up(message["reason"])

    def give_up(self, reason: str) -> None:
        """The gang is broken: tell every client, once."""
        if not self.broken:
            self.broken = reason
            then = "before it had ended" if self.state == "draining" else "and starts again"
            self._fail(f"the gang broke, {then}: {reason}")

    def _fail(self, reason: str) -> None:
        for name in list(self._where):
            awaited = self._where.pop(name)
            del awaited.live.open[name]
            awaited.live.events.put_nowait(Event(awaited.index, [], "error", reason))
