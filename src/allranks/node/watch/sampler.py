"""Looks at this node's ranks: every second or so for the sums, and on request for everything."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from allranks.node import processes
from allranks.node.death import describe
from allranks.node.gang import Gang
from allranks.node.lastwords import read_tail
from allranks.node.watch import evidence, inside
from allranks.node.watch.history import History, path_of
from allranks.node.watch.links import Answer, Link, Links

LONGEST_INTERVAL, SHORTEST_INTERVAL = 1.0, 0.1
NODES_PER_SECOND = 500
ANSWER_WAIT = 0.2
LOOK_WAIT = 1.0
TAIL = 10
FAILED = 1 << 8  # the wait status of exit code 1


class Sampler:
    """Tells the coordinator ``progress``, and of a look ``account`` (one a rank) and ``looked``.

    ``pids`` gives the living ranks with their process ids.
    """

    def __init__(self, gang: Gang, node: int, tell: Callable[..., None], pids: Callable[[], Mapping[int, int]]) -> None:
        self._gang, self._node, self._tell, self._pids = gang, node, tell, pids
        self._links = Links()
        self._history = History(path_of(gang.state, node), lambda text: tell(type="note", text=text))
        self._attempt = -1
        self._stopped_since: Dict[int, float] = {}

    @property
    def environment(self) -> Dict[str, str]:
        """What every rank needs to be watched."""
        return self._links.environment

    @property
    def interval(self) -> float:
        """Seconds between samples: short against ``hang_timeout``, and bearable for one coordinator of many nodes."""
        wanted = min(LONGEST_INTERVAL, max(SHORTEST_INTERVAL, self._gang.hang_timeout / 10))
        return max(wanted, self._gang.nodes / NODES_PER_SECOND)

    def open(self) -> None:
        self._links.open()
        self._sampling = asyncio.ensure_future(self._sample())

    def begin(self, attempt: int) -> None:
        self._attempt = attempt
        self._stopped_since.clear()
        self._links.begin(attempt)

    # ---- samples

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(self.interval)
            ranks = self._ranks()
            asked = [link.sample() for rank in ranks for link in self._links.of(rank)]
            waiting = [future for future in asked if future is not None]
            if waiting:
                await asyncio.wait(waiting, timeout=ANSWER_WAIT)
            if ranks:
                progress = [self._progress(rank) for rank in ranks]
                self._tell(type="progress", attempt=self._attempt, ranks=progress)
                self._history.add(self._attempt, progress)

    def _ranks(self) -> Dict[int, int]:
        return {rank: pid for rank, pid in sorted(self._pids().items()) if rank >= 0 and pid}

    def _progress(self, rank: int) -> Dict[str, Any]:
        link = self._links.main_of(rank)
        pid = link.pid if link else self._ranks().get(rank, 0)
        process = processes.read(pid)
        state = process.state if process else ""
        brief = link.brief if link else {}
        return {
            "rank": rank, "entered": brief.get("entered", 0), "completed": brief.get("completed", 0),
            "waits": brief.get("waits", False), "silent": round(self._silent(rank, link, state), 1),
            "state": state, "rss": evidence.resident(pid),
        }  # fmt: skip

    def _silent(self, rank: int, link: Optional[Link], state: str) -> float:
        """By the thread where there is one; a program without one can still be seen to be stopped."""
        if link is not None:
            return float(link.silent)
        if state not in ("T", "t"):
            self._stopped_since.pop(rank, None)
            return 0.0
        return time.monotonic() - self._stopped_since.setdefault(rank, time.monotonic())

    # ---- a look at everything

    async def look(self, attempt: int, keep: bool) -> None:
        """Tell the coordinator what it needs of all ranks of this node; ``keep`` their evidence before.

        Without ``keep`` it is a glance, which must do nothing to a rank: one that does not answer is sent no signal.
        """
        if attempt == self._attempt:
            accounts = await asyncio.gather(*(self._look_at(rank, pid, keep) for rank, pid in self._ranks().items()))
            for account in accounts:
                self._tell(type="account", attempt=attempt, keep=keep, account=account)
        self._tell(type="looked", attempt=attempt, keep=keep)

    async def _look_at(self, rank: int, pid: int, keep: bool) -> Dict[str, Any]:
        link = self._links.main_of(rank)
        kernel = evidence.kernel_state(link.pid if link else pid)
        silent = self._silent(rank, link, kernel["state"])
        if silent and not keep:
            link = None
        answer, stacks, frames = await _question(link, silent > 0, kernel["state"] in ("T", "t"), keep)
        account = {
            "rank": rank, "node": self._node, "pid": pid, **kernel, "silent": round(silent, 1),
            "watched": bool(answer) or silent > 0, "where": evidence.where(frames),
            "sums": [answer["entered"], answer["completed"]] if answer else None,
            "groups": evidence.short_groups(answer.get("groups", {})), "left": self._left(rank),
            "tail": read_tail(self._gang.log_of(self._attempt, rank))[-TAIL:],
        }  # fmt: skip
        if not keep:
            return account
        failed = evidence.keep(self._gang, self._attempt, account, answer, stacks or _no_stacks(link, kernel))
        if failed:
            self._tell(type="note", text=failed)
        return account

    def _left(self, rank: int) -> Optional[List[str]]:
        """Of a rank whose python is ending: kind and words of the exception that ends it, if that is why."""
        if not self._links.has_left(rank):
            return None
        death = describe(rank, self._node, FAILED, self._gang.log_of(self._attempt, rank))
        return ["", ""] if death.kind == "exit" else [death.kind, death.message]


async def _question(
    link: Optional[Link], silent: bool, stopped: bool, dump: bool
) -> Tuple[Answer, str, List[evidence.Frame]]:
    """What the thread answers with its stacks; else, if ``dump``, the stacks that the signal gives."""
    if link is None:
        return {}, "", []
    if not silent:
        future = link.ask(inside.FULL)
        await asyncio.wait([future], timeout=LOOK_WAIT)
        answer = future.result() if future.done() else None
        if answer and "threads" in answer:
            return answer, evidence.render(answer["threads"]), evidence.main_frames(answer["threads"])
    if not dump:
        return {}, "", []
    text = evidence.without_ours(await link.dump(stopped))
    return {}, text, evidence.dumped_frames(text)


def _no_stacks(link: Optional[Link], kernel: Mapping[str, Any]) -> str:
    why = "no thread of ours answers in it (not python, or python -S, -E, -I)" if link is None else "it gave none"
    return f"no stacks: {why}. The kernel's state of it: {json.dumps(kernel)}\n"
