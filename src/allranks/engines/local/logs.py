"""What the ranks printed, read from their files: in order per rank, merged by arrival."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count

from allranks.engines.engine import LogFilter, LogLine
from allranks.engines.local.rundir import RunDir
from allranks.engines.wanted import is_told, must_have
from allranks.errors import EngineError, UsageError
from allranks.node.gang import Gang
from allranks.node.status import Status
from allranks.node.tail import Tail as File

POLL = 0.05
"""Seconds between two looks at the files while there is nothing new."""


class Tail:
    """One log file of the run."""

    def __init__(self, gang: Gang, path: str, attempt: int, node: int, rank: int | None, after: float | None) -> None:
        self._attempt, self._node, self._rank = attempt, node, rank
        self._file = File(path, gang.log_limit, after)

    @property
    def at_end(self) -> bool:
        """Whether there was nothing more when it was last read."""
        return self._file.at_end

    def read(self) -> list[LogLine]:
        """The next lines."""
        return self._said(self._file.read())

    def rest(self) -> list[LogLine]:
        """The last line, which has no end and will not get one."""
        return self._said(self._file.rest())

    def _said(self, texts: list[str]) -> list[LogLine]:
        return [LogLine(self._attempt, self._node, self._rank, text) for text in texts]


def read(run: RunDir, wanted: LogFilter) -> Iterator[LogLine]:
    """What is there now. Raises UsageError for a rank, node or attempt that the run does not have."""
    gang = run.gang()
    check(run, gang, wanted)
    for attempt in _shown(run, wanted):
        for tail in _tails(gang, run, wanted, attempt):
            while not tail.at_end:
                yield from tail.read()
            yield from tail.rest()


def follow(run: RunDir, wanted: LogFilter) -> Iterator[LogLine | None]:
    """What is there and what comes, until the run (or the wanted attempt) is over; None after a moment of nothing."""
    gang = run.gang()
    check(run, gang, wanted)
    for attempt in count(_first(run, wanted)):
        yield from _follow_attempt(run, gang, wanted, attempt)
        status = run.status()
        if attempt == wanted.attempt or (is_told(status, wanted) and _last(status, wanted) <= attempt):
            return


def _follow_attempt(run: RunDir, gang: Gang, wanted: LogFilter, attempt: int) -> Iterator[LogLine | None]:
    tails = _tails(gang, run, wanted, attempt)
    while True:
        status = run.status()  # before the files: what was written until the end is then read after it
        ended = is_told(status, wanted) or status.attempt > attempt
        lines = [line for tail in tails for line in tail.read()]
        yield from lines
        if lines or not all(tail.at_end for tail in tails):
            continue
        if ended:
            yield from (line for tail in tails for line in tail.rest())
            return
        yield None
        time.sleep(POLL)


def _last(status: Status, wanted: LogFilter) -> int:
    """The last attempt to show, as far as is known."""
    return min([c.last_attempt for c in status.commands if c.number == wanted.command], default=status.attempt)


def check(run: RunDir, gang: Gang, wanted: LogFilter) -> None:
    """Raise for a rank, a node or an attempt that is not there, naming those that are."""
    must_have(run.name, "rank", wanted.ranks, gang.world_size)
    must_have(run.name, "node", wanted.nodes, gang.nodes)
    elsewhere = {rank: gang.node_of(rank) for rank in sorted(wanted.ranks)}
    if wanted.nodes and wanted.ranks and not wanted.nodes & set(elsewhere.values()):
        where = ", ".join(f"rank {rank} is on node {node}" for rank, node in elsewhere.items())
        raise UsageError(f"run {run.name} has no such rank on the nodes asked for: {where}")
    kept = run.attempts()
    if wanted.attempt is not None and wanted.attempt not in kept:
        there = ", ".join(map(str, kept)) or "none yet"
        raise EngineError(f"run {run.name} has no logs of attempt {wanted.attempt}; attempts with logs: {there}")


def _shown(run: RunDir, wanted: LogFilter) -> list[int]:
    if wanted.attempt is not None:
        return [wanted.attempt]
    kept = run.attempts()
    if wanted.since is None and wanted.after is None:
        return kept[-1:]
    return [attempt for attempt in kept if attempt >= (wanted.since or 0)]


def _first(run: RunDir, wanted: LogFilter) -> int:
    return next(iter(_shown(run, wanted)), run.status().attempt if wanted.since is None else wanted.since)


def _tails(gang: Gang, run: RunDir, wanted: LogFilter, attempt: int) -> list[Tail]:
    """The wanted files of one attempt: what a node's launcher printed, then its ranks. They need not exist yet."""
    folder = run.logs / f"attempt-{attempt}"  # by the run's own path: a run whose name was used again has moved
    tails = []
    for node in range(gang.nodes):
        if wanted.nodes and node not in wanted.nodes:
            continue
        if not wanted.ranks:
            tails.append(Tail(gang, f"{folder}/node-{node}.log", attempt, node, None, wanted.after))
        for rank in gang.ranks_of(node):
            if not wanted.ranks or rank in wanted.ranks:
                tails.append(Tail(gang, f"{folder}/rank-{rank}.log", attempt, node, rank, wanted.after))
    return tails
