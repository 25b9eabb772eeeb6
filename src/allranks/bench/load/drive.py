"""Who asks when: closed loop, N clients each with one request at a time, or open loop, whatever the server does.

A closed loop goes easy on a server that is slow; only an open one shows what waiting costs (coordinated omission).
"""

from __future__ import annotations

import asyncio
import random
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from allranks.bench.load.ask import Seen, Wish, ask
from allranks.bench.load.wire import Endpoint


@dataclass(frozen=True)
class Load:
    """How to load. ``clients`` for a closed loop, else ``rate``: mean arrivals a second, their gaps exponential.

    It ends after ``requests``, and asks nothing new after ``duration`` seconds; what is unanswered at ``deadline`` is
    given up. ``rounds``: clients wait for each other between requests, so that all of them decode together.
    """

    clients: int = 0
    rate: float = 0.0
    requests: int = 100
    duration: float = float("inf")
    timeout: float = 60.0
    deadline: float = 600.0
    rounds: bool = False
    seed: int = 0

    @property
    def label(self) -> str:
        return f"{self.clients} clients" if self.clients else f"{self.rate:g}/s"


@dataclass
class Driver:
    """One load on one endpoint. ``found`` grows while it runs; ``stop`` ends it early."""

    endpoint: Endpoint
    load: Load
    wishes: Iterator[Wish]
    found: list[Seen] = field(default_factory=list)
    began: float = 0.0
    stopped: bool = False
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self) -> float:
        """Drive to the end; returns the seconds it took."""
        raise_file_limit()
        self.began = time.perf_counter()
        work = asyncio.ensure_future(self._closed() if self.load.clients else self._open())
        self._tasks.add(work)
        await asyncio.wait([work], timeout=self.load.deadline)
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        took = time.perf_counter() - self.began
        self._close_books()
        return took

    def stop(self) -> None:
        """End now; what is in flight does not count."""
        self.stopped = True
        for task in self._tasks:
            task.cancel()

    def _close_books(self) -> None:
        if self.stopped:
            self.found[:] = [seen for seen in self.found if seen.ended]
        for seen in self.found:
            if not seen.ended:
                seen.error, seen.message = "deadline", f"not answered when {self.load.deadline:g} s were over"

    async def _one(self, due: float) -> None:
        seen = Seen(time.perf_counter(), due)
        self.found.append(seen)
        await ask(self.endpoint, next(self.wishes), self.load.timeout, seen)

    def _more(self) -> bool:
        load = self.load
        return len(self.found) < load.requests and time.perf_counter() - self.began < load.duration

    async def _closed(self) -> None:
        if self.load.rounds:
            while self._more():
                await asyncio.gather(*(self._one(time.perf_counter()) for _ in range(self.load.clients)))
        else:
            await asyncio.gather(*(self._client() for _ in range(self.load.clients)))

    async def _client(self) -> None:
        while self._more():
            await self._one(time.perf_counter())

    async def _open(self) -> None:
        draw = random.Random(self.load.seed)
        due = self.began
        for _ in range(self.load.requests):
            due += draw.expovariate(self.load.rate)
            if due - self.began > self.load.duration:
                break
            await asyncio.sleep(max(due - time.perf_counter(), 0))
            self._tasks.add(asyncio.ensure_future(self._one(due)))
        await asyncio.gather(*(task for task in self._tasks if task is not asyncio.current_task()))


def raise_file_limit() -> None:
    """Allow as many connections as the machine lets this process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard and hard != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
