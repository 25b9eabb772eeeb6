"""What the ranks of a gang print, from all its pods at once: in order per rank, merged by arrival.

Each pod's output is a stream of its own. One that breaks is taken up again where it broke, by the times that the API
server puts before each line; pods that come later, or in another's place, are taken in as they appear.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone

from allranks.engines.engine import OURS, LogFilter, LogLine
from allranks.engines.kubernetes.client import Client
from allranks.engines.kubernetes.pods import SPEAKER, Pod
from allranks.engines.kubernetes.refusals import NoRight, Refused
from allranks.engines.kubernetes.watch import Watch
from allranks.engines.wanted import must_have
from allranks.errors import EngineError, first_line
from allranks.node.relay import parse
from allranks.node.status import Status

AT_ONCE = 16
"""Pods whose logs are read at the same time, where nobody waits for more to come."""
IDLE = 0.05
AGAIN = 1.0
"""Seconds until a stream that broke is taken up again."""
LAST_WORDS = 5.0
"""Seconds for the rest of the streams once a run is over."""
SETTLED = 1.5
"""Seconds for the last lines of a command whose gang goes on, and whose streams do not end."""
BATCHES = 1000


@dataclass(frozen=True)
class Wanted:
    """Which lines: a LogFilter, made exact by what is known of the run."""

    filter: LogFilter
    first: int
    last: int | None
    ranks_per_node: int

    def takes(self, line: LogLine) -> bool:
        """Whether to show this line."""
        if line.attempt < self.first or (self.last is not None and line.attempt > self.last):
            return False
        ranks, nodes = self.filter.ranks, self.filter.nodes
        return (not ranks or line.rank in ranks) and (not nodes or line.node in nodes)

    def takes_node(self, node: int, ranks: int) -> bool:
        """Whether anything of this node can be wanted; a speaker's lines are of any node."""
        if node == SPEAKER:
            return True
        if self.filter.nodes and node not in self.filter.nodes:
            return False
        return not self.filter.ranks or any(rank // max(ranks, 1) == node for rank in self.filter.ranks)


def wanted(status: Status, asked: LogFilter) -> Wanted:
    """Raises UsageError for ranks and nodes that the run does not have."""
    must_have(status.name, "rank", asked.ranks, status.world_size)
    must_have(status.name, "node", asked.nodes, len(status.nodes))
    ranks = status.world_size // max(len(status.nodes), 1)
    if asked.attempt is not None:
        return Wanted(asked, asked.attempt, asked.attempt, ranks)
    if asked.command is not None:
        command = next((one for one in status.commands if one.number == asked.command), None)
        last = command.last_attempt if command and command.is_over else None
        return Wanted(asked, max(asked.since or 0, command.attempt if command else 0), last, ranks)
    if asked.since is None and asked.after is None:
        return Wanted(asked, status.attempt, None, ranks)
    return Wanted(asked, asked.since or 0, None, ranks)


# What is there


def read(client: Client, pods: Sequence[Pod], chosen: Wanted, ranks: int) -> Iterator[LogLine]:
    """All that the pods' containers have printed, those before the present ones too."""
    asked = [pod for pod in pods if chosen.takes_node(pod.node, ranks)]
    with ThreadPoolExecutor(min(AT_ONCE, max(len(asked), 1))) as pool:
        for lines in pool.map(lambda pod: list(_of_pod(client, pod, chosen)), asked):
            yield from lines


def _of_pod(client: Client, pod: Pod, chosen: Wanted) -> Iterator[LogLine]:
    for previous in ("true", ""):
        if previous and not pod.last_state:
            continue
        try:
            for _, text in _stream(client, pod, since=_time(chosen.filter.after), previous=previous):
                line = _line(pod.node, text, chosen.ranks_per_node)
                if line is not None and chosen.takes(line):
                    yield line
        except Refused as refused:
            if refused.code not in (400, 404):  # it has no output: it never started, or that one is gone
                raise


def _line(node: int, text: str, ranks: int) -> LogLine | None:
    found = parse(text)
    if found is None:
        return None
    attempt, launchers, rank, said = found
    if node == SPEAKER and rank is not None:
        node = rank // max(ranks, 1)
    elif node == SPEAKER and launchers is not None:
        node = launchers
    return LogLine(attempt, node, rank, said)


def _time(moment: float | None) -> str:
    return "" if moment is None else datetime.fromtimestamp(moment, timezone.utc).isoformat().replace("+00:00", "Z")


def _stream(client: Client, pod: Pod, **query: str) -> Iterator[tuple[str, str]]:
    """Each line with the time before it. Raises Refused, Unreachable when the line breaks."""
    import urllib3

    named = {"sinceTime": query.pop("since", ""), "container": pod.container, "timestamps": "true", **query}
    with client.log(pod.name, pod.namespace, **named) as response:
        partial = b""
        try:
            for piece in response.stream(64 * 1024):
                *whole, partial = (partial + piece).split(b"\n")
                for line in whole:
                    yield _cut(line)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise client.unreachable(error) from error
        if partial:
            yield _cut(partial)


def _cut(line: bytes) -> tuple[str, str]:
    at, _, text = line.decode(errors="replace").partition(" ")
    return at, text


# What comes


class _Follower(threading.Thread):
    """One pod's stream, taken up again where it broke, until its container has ended."""

    def __init__(self, client: Client, pod: Pod, chosen: Wanted, out: queue.Queue[LogLine]) -> None:
        super().__init__(daemon=True)
        self._client, self._pod, self._chosen, self._out = client, pod, chosen, out
        self.node = pod.node
        self._last = ""
        self._seen = 0
        self.closing = threading.Event()
        self.trouble = ""
        self.ended = False
        self.start()

    def run(self) -> None:
        """Until a stream ends by itself: the container did."""
        while not self.closing.is_set():
            try:
                self._follow()
                self.ended = True
                return
            except EngineError as error:  # its container is about to start, or kubelet or API server do not answer
                self.trouble = first_line(error) if isinstance(error, NoRight) else ""
                self.closing.wait(AGAIN)

    def _follow(self) -> None:
        """Lines with the time of the last one may have been seen: as many of them as came are left out."""
        since, skip = self._last or _time(self._chosen.filter.after), self._seen
        start = self._last
        for at, text in _stream(self._client, self._pod, since=since, follow="true"):
            if at == start and skip:
                skip -= 1
                continue
            self._seen = self._seen + 1 if at == self._last else 1
            self._last = at
            line = _line(self._pod.node, text, self._chosen.ranks_per_node)
            if line is not None and self._chosen.takes(line):
                self._out.put(line)
            if self.closing.is_set():
                return


def follow(
    client: Client, watch: Watch, chosen: Wanted, ranks: int, over: Callable[[Status], bool]
) -> Iterator[LogLine | None]:
    """What is there and what comes, until the run is over; None after a moment of nothing."""
    lines: queue.Queue[LogLine] = queue.Queue(BATCHES)
    followers: dict[str, _Follower] = {}
    said: set[str] = set()
    until: float | None = None
    try:
        while True:
            for pod in (*watch.pods, *watch.speakers):
                begun = bool(pod.state) and "waiting" not in pod.state
                if begun and pod.uid not in followers and chosen.takes_node(pod.node, ranks):
                    followers[pod.uid] = _Follower(client, pod, chosen, lines)
            got = yield from _drain(lines)
            if got:
                until = None
                continue
            yield None
            status = watch.status()
            for note in (*watch.outages, *(one.trouble for one in followers.values() if one.trouble)):
                if note not in said:
                    said.add(note)
                    yield LogLine(status.attempt, OURS, None, note)
            patience = LAST_WORDS if status.is_over else SETTLED
            until = (until or time.monotonic() + patience) if over(status) else None
            if (
                until
                and lines.empty()
                and (_are_all_told(followers, chosen, status, ranks) or time.monotonic() > until)
            ):
                return
    finally:
        for one in followers.values():
            one.closing.set()


def _are_all_told(followers: Mapping[str, _Follower], chosen: Wanted, status: Status, ranks: int) -> bool:
    """Whether every wanted node has been followed to its end: one that was quick may not have been seen yet."""
    told = {one.node for one in followers.values()}
    wanted = {node.node for node in status.nodes if chosen.takes_node(node.node, ranks)}
    told |= wanted if SPEAKER in told else set()
    return status.is_over and wanted <= told and all(one.ended for one in followers.values())


def _drain(lines: queue.Queue[LogLine]) -> Generator[LogLine, None, bool]:
    """What is there now, after at most a moment; returns whether there was anything."""
    got = False
    try:
        yield lines.get(timeout=IDLE)
        got = True
        while True:
            yield lines.get_nowait()
    except queue.Empty:
        return got


def gone(pods: Sequence[Pod], chosen: Wanted, status: Status, ranks: int) -> Iterator[LogLine]:
    """A line for each wanted node whose pod is no more. Raises EngineError where that is so of all."""
    there = {pod.node for pod in pods}
    if SPEAKER in there:
        return
    asked = [node.node for node in status.nodes if chosen.takes_node(node.node, ranks)]
    if asked and not there & set(asked):
        told = f"run {status.name}: the pods that could tell are gone, and with them what they printed"
        raise EngineError(f"{told}; see: allranks status {status.name}")
    for node in asked:
        if node not in there:
            yield LogLine(status.attempt, node, None, "allranks: its pod is gone, and with it what it printed")
