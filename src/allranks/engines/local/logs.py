"""What the ranks printed, read from their files: in order per rank, merged by arrival.

The files hold every byte. What is read here is for people: a line beyond LONGEST is cut with a note, and of a progress
bar that draws itself again and again only its state every BAR seconds is a line.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from itertools import count

from allranks.engines.engine import LogFilter, LogLine
from allranks.engines.local.rundir import RunDir
from allranks.errors import EngineError, UsageError
from allranks.node import logs as files
from allranks.node.gang import Gang
from allranks.node.status import Status

CHUNK = 64 * 1024
"""Bytes taken from one file before the next has its turn."""

LONGEST = CHUNK
"""Bytes of a line without an end that are shown."""

POLL = 0.05
"""Seconds between two looks at the files while there is nothing new."""

BAR = 5.0
"""Seconds between two lines for a progress bar that is still moving."""

_UP = re.compile(r"\x1b\[\d*[AF]")  # how several bars are drawn: each line goes back up over the ones before


class Tail:
    """One log file, read on from where the last read ended. ``after`` leaves out what was printed before that moment.

    ``at_end`` says that there was nothing more when it was last read.
    """

    def __init__(
        self, path: str, attempt: int, node: int, rank: int | None, limit: int, after: float | None = None
    ) -> None:
        self._path, self._attempt, self._node, self._rank, self._limit = path, attempt, node, rank, limit
        self._offset = 0 if after is None else _line_start(path, files.size_at(path, after))
        self._partial = b""
        self._left_out: int | None = None  # bytes of the line that is being cut; None between lines
        self._frame = ""
        self._bar_at = time.monotonic()
        self.at_end = False

    def read(self) -> list[LogLine]:
        """The whole lines among the next CHUNK bytes, and now and then the state of a progress bar."""
        lines: list[str] = []
        new = self._next(lines)
        self.at_end = not new
        lines += self._split(new)
        if not lines and time.monotonic() - self._bar_at > BAR:
            lines = self._bar()
        return self._said(lines)

    def rest(self) -> list[LogLine]:
        """The last line, which has no end and will not get one."""
        return self._said(self._rest())

    def _said(self, texts: list[str]) -> list[LogLine]:
        return [LogLine(self._attempt, self._node, self._rank, text) for text in texts]

    # ---- bytes

    def _next(self, lines: list[str]) -> bytes:
        """The next bytes; where they were cut away, what is left from before goes to ``lines``, with a note."""
        try:
            size = os.stat(self._path).st_size
            if size == self._offset:
                return b""
            with open(self._path, "rb") as file:
                new = os.pread(file.fileno(), CHUNK, self._offset)
                # Asked afterwards: if the bytes above are of a hole, this says so.
                begin = files.beginning(file.fileno()) if size > self._limit else 0
        except FileNotFoundError:
            return b""  # the rank has not started
        if size < self._offset or self._offset < begin:
            lines += self._rest()
            if begin:
                lost = f"{begin - self._offset:,} bytes of this log were cut away"
                lines.append(f"allranks: {lost}: it had grown beyond {self._limit:,} bytes (logs.limit)")
            self._offset = begin
            return self._next(lines)
        self._offset += len(new)
        return new

    # ---- lines

    def _split(self, new: bytes) -> list[str]:
        lines: list[str] = []
        if self._left_out is not None:
            cut, newline, new = new.partition(b"\n")
            self._left_out += len(cut)
            if newline:
                lines = self._end_of_cut()
        whole, newline, self._partial = (self._partial + new).rpartition(b"\n")
        if newline:
            lines += self._without_frames(_decode(whole).split("\n"))
        if len(self._partial) >= LONGEST:
            lines += self._shorten()
        return lines

    def _shorten(self) -> list[str]:
        """Keep a progress bar's last state; cut what is no bar."""
        self._partial = self._partial[self._partial.rstrip(b"\r").rfind(b"\r") + 1 :]
        if len(self._partial) < LONGEST:
            return []
        piece, rest = _cut(self._partial)
        self._partial, self._left_out = b"", len(rest)
        return [_decode(piece)]

    def _end_of_cut(self) -> list[str]:
        left_out, self._left_out = self._left_out, None
        return [f"allranks: {left_out:,} more bytes of this line are in {self._path}"] if left_out else []

    def _without_frames(self, texts: list[str]) -> list[str]:
        """Of lines that go back up, the last before another line: they draw over each other."""
        lines = []
        for text in texts:
            if "\x1b[" in text and _UP.search(text):
                self._frame = text
                continue
            if self._frame:
                lines.append(self._frame)
                self._frame = ""
            lines.append(text.removesuffix("\r"))
        return lines

    def _bar(self) -> list[str]:
        """The state of what is being drawn, if anything is."""
        self._bar_at = time.monotonic()
        frame, self._frame = self._frame, ""
        if b"\r" in self._partial:
            frame = _decode(self._partial)
            self._partial = self._partial[self._partial.rstrip(b"\r").rfind(b"\r") + 1 :]
        return [frame] if frame else []

    def _rest(self) -> list[str]:
        partial, self._partial = self._partial, b""
        frame, self._frame = self._frame, ""
        lines = self._end_of_cut()
        return lines + [text for text in (frame, _decode(partial)) if text]


def _decode(data: bytes) -> str:
    return data.decode(errors="replace")


def _cut(data: bytes) -> tuple[bytes, bytes]:
    """Cut near the end, between two characters of UTF-8 where it is UTF-8."""
    for back in range(1, 5):
        if data[-back] & 0xC0 != 0x80:
            return data[:-back], data[-back:]
    return data, b""


def _line_start(path: str, offset: int) -> int:
    """Where the line begins that has this offset in it, if that is near."""
    begin = max(0, offset - CHUNK)
    try:
        with open(path, "rb") as file:
            before = os.pread(file.fileno(), offset - begin, begin)
    except FileNotFoundError:
        return 0
    found = before.rfind(b"\n")
    return begin + found + 1 if found >= 0 or not begin else offset


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
        if attempt == wanted.attempt or (_is_over(status, wanted) and _last(status, wanted) <= attempt):
            return


def _follow_attempt(run: RunDir, gang: Gang, wanted: LogFilter, attempt: int) -> Iterator[LogLine | None]:
    tails = _tails(gang, run, wanted, attempt)
    while True:
        status = run.status()  # before the files: what was written until the end is then read after it
        ended = _is_over(status, wanted) or status.attempt > attempt
        lines = [line for tail in tails for line in tail.read()]
        yield from lines
        if lines or not all(tail.at_end for tail in tails):
            continue
        if ended:
            yield from (line for tail in tails for line in tail.rest())
            return
        yield None
        time.sleep(POLL)


def _is_over(status: Status, wanted: LogFilter) -> bool:
    """Whether nothing more is to come: the run is over, or the wanted command, or an idle gang runs none."""
    if wanted.command is None or status.is_over:
        return status.is_over or status.phase == "idle"
    return status.of_command(wanted.command).is_over


def _last(status: Status, wanted: LogFilter) -> int:
    """The last attempt to show, as far as is known."""
    return min([c.last_attempt for c in status.commands if c.number == wanted.command], default=status.attempt)


def check(run: RunDir, gang: Gang, wanted: LogFilter) -> None:
    """Raise for a rank, a node or an attempt that is not there, naming those that are."""
    _within("rank", wanted.ranks, gang.world_size, run.name)
    _within("node", wanted.nodes, gang.nodes, run.name)
    elsewhere = {rank: gang.node_of(rank) for rank in sorted(wanted.ranks)}
    if wanted.nodes and wanted.ranks and not wanted.nodes & set(elsewhere.values()):
        where = ", ".join(f"rank {rank} is on node {node}" for rank, node in elsewhere.items())
        raise UsageError(f"run {run.name} has no such rank on the nodes asked for: {where}")
    kept = run.attempts()
    if wanted.attempt is not None and wanted.attempt not in kept:
        there = ", ".join(map(str, kept)) or "none yet"
        raise EngineError(f"run {run.name} has no logs of attempt {wanted.attempt}; attempts with logs: {there}")


def _within(what: str, numbers: frozenset[int], size: int, name: str) -> None:
    for number in sorted(numbers):
        if not 0 <= number < size:
            raise UsageError(f"run {name} has no {what} {number}; it has {what}s 0 to {size - 1}")


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
            tails.append(Tail(f"{folder}/node-{node}.log", attempt, node, None, gang.log_limit, wanted.after))
        for rank in range(node * gang.ranks_on_node, (node + 1) * gang.ranks_on_node):
            if not wanted.ranks or rank in wanted.ranks:
                tails.append(Tail(f"{folder}/rank-{rank}.log", attempt, node, rank, gang.log_limit, wanted.after))
    return tails
