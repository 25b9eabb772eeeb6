"""In a container: what the ranks print, copied from their files to the container's own output.

Ranks write into files (``logs.py``) and never wait for whoever reads this: where the output stalls, only this thread
does, and what goes beyond the files' bound can be lost. Each line says whose it is, so that ``kubectl logs`` can be
read, and a client can tell the ranks apart again (``parse``). Lines of the agent itself begin with ``allranks: ``.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from typing import List, Optional, Tuple

from allranks.node.gang import Gang
from allranks.node.tail import Tail

POLL = 0.1
"""Seconds between two looks at the files while there is nothing new."""
PIECE = 4096
"""Bytes of one write: what a pipe takes without mixing it with the writes of others."""

_LINE = re.compile(r"(\d+) (rank|node) (\d+) \| (.*)", re.DOTALL)


def parse(text: str) -> Optional[Tuple[int, Optional[int], Optional[int], str]]:
    """Attempt, node (of what its launcher printed), rank, and the line itself; None for a line of allranks' own."""
    found = _LINE.fullmatch(text)
    if found is None:
        return None
    number = int(found[3])
    return int(found[1]), number if found[2] == "node" else None, number if found[2] == "rank" else None, found[4]


class Relay(threading.Thread):
    """Copies the logs of one node's ranks, from the next attempt on, and its agent's."""

    def __init__(self, gang: Gang, node: int, out: int = 1) -> None:
        super().__init__(daemon=True)
        self._gang, self._node, self._out = gang, node, out
        self._folder = os.path.join(gang.state, "logs")
        self._newest = max(self._attempts(), default=-1)  # of a container before this one, which copied them
        self._tails: List[Tuple[int, str, Tail]] = []
        self._ending = threading.Event()
        self._skip_at = math.inf
        path = os.path.join(self._folder, f"agent-{node}.log")
        now = time.time() if os.path.exists(path) else None
        self._agent = Tail(path, gang.log_limit, now)

    def finish(self, seconds: float) -> bool:
        """Copy what is left, and return once that is done, or after ``seconds``: whether it was.

        After half of that only the last lines of each file are still copied: they say how it ended.
        """
        self._skip_at = time.monotonic() + seconds / 2
        self._ending.set()
        self.join(seconds)
        return not self.is_alive()

    def run(self) -> None:
        """Until ``finish``, or until nobody can read it any more."""
        try:
            while not self._ending.is_set():
                if not self._copy():
                    self._ending.wait(POLL)
            while self._copy():
                if time.monotonic() > self._skip_at:
                    self._skip_at = math.inf
                    self._write([line for _, who, tail in self._tails for line in _marked(who, tail.skip())])
            self._write([line for _, who, tail in self._tails for line in _marked(who, tail.rest())])
        except OSError:
            pass  # the output is closed, or a log cannot be read: neither ends the node

    def _copy(self) -> bool:
        """One piece of each file; whether there was anything."""
        for attempt in sorted(self._attempts()):
            if attempt > self._newest:
                self._newest = attempt
                self._tails += self._files(attempt)
        lines = [f"allranks: {line}" for line in self._agent.read()]
        for attempt, who, tail in list(self._tails):
            new = tail.read()
            if attempt < self._newest and tail.at_end:
                new += tail.rest()
                self._tails.remove((attempt, who, tail))
            lines += _marked(who, new)
        self._write(lines)
        return bool(lines) or not all(tail.at_end for _, _, tail in self._tails)

    def _attempts(self) -> List[int]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        return [int(name[8:]) for name in names if name.startswith("attempt-") and name[8:].isdigit()]

    def _files(self, attempt: int) -> List[Tuple[int, str, Tail]]:
        gang, node = self._gang, self._node
        paths = [(f"node {node}", gang.launcher_log_of(attempt, node))]
        paths += [(f"rank {rank}", gang.log_of(attempt, rank)) for rank in gang.ranks_of(node)]
        return [(attempt, f"{attempt} {who} | ", Tail(path, gang.log_limit)) for who, path in paths]

    def _write(self, lines: List[str]) -> None:
        piece: List[bytes] = []
        size = 0
        for line in lines:
            data = line.encode("utf-8", "backslashreplace") + b"\n"
            if piece and size + len(data) > PIECE:
                _write_all(self._out, b"".join(piece))
                piece, size = [], 0
            piece.append(data)
            size += len(data)
        if piece:
            _write_all(self._out, b"".join(piece))


def _marked(who: str, lines: List[str]) -> List[str]:
    return [who + line for line in lines]


def _write_all(out: int, data: bytes) -> None:
    while data:
        data = data[os.write(out, data) :]
