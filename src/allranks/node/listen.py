"""The coordinator's rim: its port, its clock, its record on disk."""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
import socket
import time
from typing import Any, Awaitable, Callable, Dict, Mapping, Optional

from allranks.node import wire
from allranks.node.ask import answer
from allranks.node.coordinator import Coordinator
from allranks.node.files import say
from allranks.node.gang import Gang
from allranks.node.record import read_record, write_record
from allranks.node.rollcall import Member, Refused
from allranks.node.watch import evidence

TICK = 0.05
BACKLOG = 1024  # asyncio listens anew, with 100 by default: a thousand agents would wait for TCP's resends
RECORD_INTERVAL = 0.05
RECORD_SHARE = 10
VITALS_INTERVAL, VITALS_SHARE = 1.0, 100
LAST_WORDS = 5.0
SEEN_ENDED = 1.0  # seconds in which a kubelet looks at what has become of its containers
SPARE_HANDSHAKES = 64
UNWRITABLE_PAUSE = 1.0


def free_port() -> int:
    """A port free on all of this host's addresses. Raises OSError when the range is exhausted."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


class Listener:
    """Serves the roll call on a listening socket until the run is over.

    ``ended_well`` is awaited at the end of a run that succeeded, while node 0's own agent still holds its ranks.
    ``recorded`` is called whenever the record may have changed.
    """

    def __init__(
        self, gang: Gang, secret: bytes, sock: socket.socket, ended_well: Callable[[], Awaitable[None]]
    ) -> None:
        self.gang, self._secret, self._sock, self._ended_well = gang, secret, sock, ended_well
        self._dirty = asyncio.Event()
        self.coordinator = Coordinator(
            gang, free_port, self._dirty.set,
            earlier=read_record(gang.state), how_lost=os.environ.get("ALLRANKS_EARLIER", ""),
            began=float(os.environ["ALLRANKS_BEGAN"]) if "ALLRANKS_BEGAN" in os.environ else None,
        )  # fmt: skip
        self.coordinator.keep = self._write_record
        self.recorded: Callable[[], object] = lambda: None
        self.coordinator.stall.save = functools.partial(evidence.write, gang)
        self._handshakes = 0

    async def run(self) -> None:
        """Return once the verdict is told and the other agents have hung up (or had LAST_WORDS seconds).

        Of a gang that node 0 ``closes`` SEEN_ENDED later.
        """
        server = await asyncio.start_server(self._welcome, sock=self._sock, limit=wire.LINE_LIMIT, backlog=BACKLOG)
        recorder = asyncio.ensure_future(self._record())
        try:
            while self.coordinator.verdict is None or self.coordinator.state != "finishing":
                self.coordinator.tick()
                await asyncio.sleep(TICK)
            await self._say_goodbye()
            if self.coordinator.verdict.phase == "succeeded":
                await self._ended_well()
        finally:
            recorder.cancel()
            self._write_record()
            server.close()
            for member in self.coordinator.roll.members.values():
                member.close()

    async def _say_goodbye(self) -> None:
        self._write_record()
        until = asyncio.get_running_loop().time() + LAST_WORDS
        while self._somebody_is_to_be_told():
            if asyncio.get_running_loop().time() > until:
                return
            await asyncio.sleep(TICK / 5)
        if self.gang.closes and self.gang.nodes > 1:
            await asyncio.sleep(SEEN_ENDED)

    def _somebody_is_to_be_told(self) -> bool:
        """An agent that has not hung up; of a coordinator that was lost also those that have yet to find this one."""
        c = self.coordinator
        return any(node for node in c.roll.members) or (c.is_successor and len(c.told) < self.gang.nodes - 1)

    async def _record(self) -> None:
        """At once when something happened; how the ranks do is worth a hundredth of our time."""
        took, vitals = 0.0, self.coordinator.stall.vitals
        while True:
            try:
                await asyncio.wait_for(self._dirty.wait(), max(VITALS_INTERVAL, VITALS_SHARE * took))
            except asyncio.TimeoutError:
                if not vitals.fresh:
                    continue
            self._dirty.clear()
            vitals.fresh = False
            began = time.monotonic()
            written = self._write_record()
            took = time.monotonic() - began
            await asyncio.sleep(max(RECORD_INTERVAL, RECORD_SHARE * took))
            if not written:
                await asyncio.sleep(UNWRITABLE_PAUSE)
                self._dirty.set()

    def _write_record(self) -> bool:
        """What cannot be written is said once: in our log, and in the record as soon as it can be."""
        self.recorded()
        try:
            write_record(self.gang.state, self.coordinator.status)
        except OSError as error:
            text = f"the record of the run could not be written to {self.gang.state}: {error.strerror}"
            if text not in self.coordinator.notes:
                say(text)
                self.coordinator.note(text)
            return False
        return True

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from handshake to end; nothing that comes in here can stop the coordinator."""
        try:
            line = await self._shake_hands(reader, writer)
            member = await self._seat(line) if line is not None else None
            if line is not None and member is not None:
                await self._listen_to(line, member)
        except (wire.WireError, OSError, TypeError, ValueError):
            pass  # a stranger, or a hello that is none: it is hung up on, and may try again
        finally:
            writer.close()

    async def _shake_hands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Optional[wire.Wire]:
        """None when too many are at it already: strangers must not cost more than this."""
        if self._handshakes >= self.gang.nodes + SPARE_HANDSHAKES:
            return None
        self._handshakes += 1
        try:
            return await wire.accept(reader, writer, self._secret)
        finally:
            self._handshakes -= 1

    async def _listen_to(self, line: wire.Wire, member: Member) -> None:
        why = "its connection closed"
        try:
            while True:
                message = await line.receive()
                if message is None:
                    return
                self.coordinator.heard(member, message)
        except (wire.WireError, KeyError, TypeError, ValueError, AttributeError) as error:
            why = f"it broke the protocol: {error}"
        finally:
            self.coordinator.lost(member, why, silent=False)

    def _answer(self, request: Mapping[str, Any]) -> Dict[str, Any]:
        """Have it in the record before it is answered: whoever asked will look there, and would wait for ever."""
        if request.get("what") == "exec" and not self._write_record():
            return {"refused": f"its record cannot be written to {self.gang.state}; make room on that disk"}
        answered = answer(self.coordinator, request)
        self._write_record()
        return answered

    async def _seat(self, line: wire.Wire) -> Optional[Member]:
        hello = await line.receive()
        if hello is None:
            return None
        if hello.get("type") == "ask":
            line.send(**self._answer(hello))
            await line.flush()
            return None

        def member(node: int, incarnation: str) -> Member:
            return Member(node, incarnation, str(hello.get("host", ""))[:253], line.own_address, line.send, line.close)

        try:
            seated = self.coordinator.hello(hello, member)
        except Refused as refusal:
            self.coordinator.refuse(f"{hello.get('host', '?')!s:.64} ({line.peer_address})", str(refusal))
            line.send(type="refused", why=str(refusal))
            await line.flush()
            return None
        if seated is None:
            line.send(type="wait", why="another agent holds this node number and is alive")
            await line.flush()
        else:
            line.send(type="welcome")
        return seated


def new_incarnation() -> str:
    """What tells one life of a node's agent from the next."""
    return secrets.token_hex(8)
