"""The agent's side of the threads in the ranks (``inside.py``): who has connected, what was asked, who is silent."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import struct
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Set, Tuple

from allranks.node import processes
from allranks.node.watch import inside

BACKLOG = 512
PACKET = 64 * 1024
LONGEST_LINE = 8 * 1024 * 1024
LATE = 1.0
DUMP_SECONDS = 0.6
DUMP_POLL = 0.005
DUMP_SETTLED = 3

Answer = Dict[str, Any]


class Link:
    """One process of a rank. Answers come in the order in which they were asked for."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        connection.setblocking(False)
        self._socket, self.pid = connection, pid
        self._start_time = processes.start_time(pid)
        self.hello: Answer = {}
        self.brief: Answer = {}
        self._stacks = -1
        self._buffer = b""
        self._asked: Deque[Tuple[float, asyncio.Future[Optional[Answer]]]] = deque()

    @property
    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def is_open(self) -> bool:
        return self.fileno >= 0

    @property
    def silent(self) -> float:
        """For how many seconds it owes an answer; 0 as long as that is not worth a word."""
        owed = time.monotonic() - self._asked[0][0] if self._asked else 0.0
        return owed if owed > LATE else 0.0

    def ask(self, what: bytes) -> asyncio.Future[Optional[Answer]]:
        """The future's result is None when the process ends before it answers."""
        future: asyncio.Future[Optional[Answer]] = asyncio.get_running_loop().create_future()
        try:
            self._socket.send(what, socket.MSG_NOSIGNAL)
        except OSError:
            future.set_result(None)
        else:
            self._asked.append((time.monotonic(), future))
        return future

    def sample(self) -> Optional[asyncio.Future[Optional[Answer]]]:
        """Ask for the sums, unless it owes an answer already."""
        return self.ask(inside.BRIEF) if self.hello and not self._asked else None

    # ---- what comes in

    def read(self) -> bool:
        """Take what has come; False when the process has closed the link or does not speak as ours do."""
        try:
            data, rights, _, _ = self._socket.recvmsg(PACKET, socket.CMSG_SPACE(4))
        except BlockingIOError:
            return True
        except OSError:
            return False
        for level, kind, content in rights:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS and self._stacks < 0:
                (self._stacks,) = struct.unpack("i", content[:4])
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return bool(data) and len(self._buffer) < LONGEST_LINE and all(self._take(line) for line in lines)

    def _take(self, line: bytes) -> bool:
        try:
            message = json.loads(line)
            if not self.hello:
                self.hello = {name: int(message[name]) for name in ("rank", "attempt", "signal")}
                return True
            _, future = self._asked.popleft()
        except (ValueError, TypeError, KeyError, IndexError):
            return False
        if "entered" in message:
            self.brief = message
        if not future.done():
            future.set_result(message)
        return True

    def close(self) -> None:
        self._socket.close()
        if self._stacks >= 0:
            os.close(self._stacks)
            self._stacks = -1
        for _, future in self._asked:
            if not future.done():
                future.set_result(None)
        self._asked.clear()

    # ---- stacks of a rank whose thread cannot answer

    async def dump(self, stopped: bool) -> str:
        """What faulthandler writes when it is sent its signal; a stopped rank is woken for it and stopped again."""
        if self._stacks < 0 or not self._takes_signal():
            return ""
        before = os.fstat(self._stacks).st_size
        self._kill(self.hello["signal"], processes.signal_main_thread)
        if stopped:
            self._kill(signal.SIGCONT)
        size = await self._settled_size(before)
        if stopped:
            self._kill(signal.SIGSTOP)
        if not self.is_open:
            return ""
        return os.pread(self._stacks, size - before, before).decode("utf-8", "replace")

    async def _settled_size(self, before: int) -> int:
        """Once it has grown and then stayed for a while; at most DUMP_SECONDS."""
        until = time.monotonic() + DUMP_SECONDS
        size, same = before, 0
        while self.is_open and time.monotonic() < until and (size == before or same < DUMP_SETTLED):
            await asyncio.sleep(DUMP_POLL)
            now = os.fstat(self._stacks).st_size if self.is_open else size
            size, same = now, same + 1 if now == size else 0
        return size

    def _takes_signal(self) -> bool:
        """Whether the handler is still there: without one the signal would kill."""
        number = int(self.hello.get("signal", 0))
        try:
            with open(f"/proc/{self.pid}/status", encoding="utf-8", errors="replace") as file:
                caught = next((int(line.split()[1], 16) for line in file if line.startswith("SigCgt:")), 0)
        except OSError:
            return False
        return number > 0 and bool(caught >> (number - 1) & 1)

    def _kill(self, number: int, send: Callable[[int, int], None] = os.kill) -> None:
        if self.is_open and processes.start_time(self.pid) == self._start_time:
            try:
                send(self.pid, number)
            except ProcessLookupError:
                pass  # it has just ended


class Links:
    """All that connected in this attempt, by rank."""

    def __init__(self) -> None:
        self._name = f"allranks-{secrets.token_hex(8)}"
        self._links: List[Link] = []
        self._attempt = -1
        self._left: Set[int] = set()

    @property
    def environment(self) -> Dict[str, str]:
        """What a rank needs to find us."""
        return {inside.SOCKET: self._name}

    def open(self) -> None:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind("\0" + self._name)
        listening.listen(BACKLOG)
        listening.setblocking(False)
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def begin(self, attempt: int) -> None:
        """Forget the ranks of the attempt before."""
        self._attempt = attempt
        self._left.clear()
        for link in list(self._links):
            if link.hello.get("attempt", attempt) != attempt:
                self._drop(link)

    def of(self, rank: int) -> List[Link]:
        wanted = {"rank": rank, "attempt": self._attempt}
        return [link for link in self._links if wanted.items() <= link.hello.items()]

    def main_of(self, rank: int) -> Optional[Link]:
        """The process that takes part in collectives; before there are any, the first that connected.

        A rank that was exec'd may be a wrapper, and may start helpers: all of them connect.
        """
        links = self.of(rank)
        return next((link for link in links if link.brief.get("entered")), links[0] if links else None)

    def has_left(self, rank: int) -> bool:
        """Whether its thread has taken leave, as it does when its python ends; the process may take longer to."""
        return rank in self._left and not self.of(rank)

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except OSError:
            return  # it has gone already, or we have too many open files: then this rank is not watched
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", credentials)
        if uid != os.getuid():
            connection.close()
            return
        link = Link(connection, pid)
        self._links.append(link)
        asyncio.get_running_loop().add_reader(link.fileno, self._read, link)

    def _read(self, link: Link) -> None:
        if not link.read():
            self._drop(link)

    def _drop(self, link: Link) -> None:
        asyncio.get_running_loop().remove_reader(link.fileno)
        self._links.remove(link)
        if link.hello.get("attempt") == self._attempt:
            self._left.add(link.hello["rank"])
        link.close()
