"""The ranks' own connections: rank 0's plan goes out on one, and on the other they hear that each other is alive.

Nothing else tells reliably that a peer is gone: a collective on CUDA hangs for ever after a ``kill -9``, gloo after
a SIGSTOP, and their timeouts bite the slow as well as the dead. A thread of its own that ends the process does.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import pickle
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as dist

PLAN, LIFE = b"P", b"L"
HELLO = struct.Struct("!32scI")
HEAD = struct.Struct("!Ii")  # bytes of the payload that follows, stop status
BEAT = 0.2
"""Seconds between two signs of life."""
JOIN = 60.0
"""Seconds for all ranks to connect, once torch.distributed has them together."""
GREETING = 5.0
"""Seconds for who has connected to say who it is."""


class Gone(Exception):
    """A peer's connection ended."""


class Peers:
    """A star around rank 0: two connections to each other rank."""

    def __init__(self, plans: dict[int, socket.socket], lives: dict[int, socket.socket]) -> None:
        self.plans, self.lives = plans, lives


def connect(address: str, world: int) -> Peers:
    """Connect the ``world`` ranks of the gang, every one calling this. ``address`` is rank 0's own (MASTER_ADDR).

    Raises Gone when they are not all there within JOIN seconds.
    """
    if world == 1:
        return Peers({}, {})
    rank = dist.get_rank()
    token = secrets.token_bytes(32)
    listener = _listen(address, 2 * world) if rank == 0 else None
    meeting = [(listener.getsockname()[1], token) if listener else None]
    dist.broadcast_object_list(meeting, src=0)
    if listener:
        with listener:
            return _accept(listener, token, world, time.monotonic() + JOIN)
    assert meeting[0] is not None  # rank 0's, by now
    port, token = meeting[0]
    return Peers({0: _dial(address, port, token, PLAN, rank)}, {0: _dial(address, port, token, LIFE, rank)})


def _listen(address: str, backlog: int) -> socket.socket:
    try:
        return socket.create_server((address, 0), backlog=backlog)
    except OSError:  # the address by which others reach this node is not its own: a NAT, a service's name
        return socket.create_server(("", 0), backlog=backlog)


def _accept(listener: socket.socket, token: bytes, world: int, until: float) -> Peers:
    found: dict[bytes, dict[int, socket.socket]] = {PLAN: {}, LIFE: {}}
    while sum(map(len, found.values())) < 2 * (world - 1):
        left = until - time.monotonic()
        if left <= 0:
            for peer in (*found[PLAN].values(), *found[LIFE].values()):
                peer.close()
            there = ", ".join(map(str, sorted(found[LIFE]))) or "none"
            raise Gone(f"of {world - 1} other ranks {there} connected within {JOIN:g} s; see what the others said last")
        listener.settimeout(left)
        with contextlib.suppress(OSError):  # nobody came
            peer, _ = listener.accept()
            peer.settimeout(min(GREETING, left))
            if not _is_let_in(peer, token, world, found):
                peer.close()
    return Peers(found[PLAN], found[LIFE])


def _is_let_in(peer: socket.socket, token: bytes, world: int, found: dict[bytes, dict[int, socket.socket]]) -> bool:
    """Hear who it is, and keep a rank's connection; a stranger knows no token, or says nothing."""
    try:
        said, kind, rank = HELLO.unpack(_exactly(peer, HELLO.size))
    except (OSError, Gone):
        return False
    if not (hmac.compare_digest(said, token) and kind in found and 0 < rank < world):
        return False
    found[kind][rank] = _ready(peer)
    return True


def _dial(address: str, port: int, token: bytes, kind: bytes, rank: int) -> socket.socket:
    try:
        peer = socket.create_connection((address, port), timeout=JOIN)
        peer.sendall(HELLO.pack(token, kind, rank))
    except OSError as error:
        raise Gone(f"rank 0 cannot be reached at {address}:{port}: {error}") from error
    return _ready(peer)


def _ready(peer: socket.socket) -> socket.socket:
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


def _exactly(peer: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    _fill(peer, memoryview(data))
    return bytes(data)


def _fill(peer: socket.socket, data: memoryview) -> None:
    while data:
        size = peer.recv_into(data)
        if not size:
            raise Gone("Connection closed")
        data = data[size:]


class Plans:
    """The control plane of the loop: rank 0 decides alone and tells; the others take it, and never sleep on the way.

    A reduction among all, as transformers has it, makes every step wait for the slowest rank's host.
    """

    def __init__(self, peers: Peers, rank: int) -> None:
        self._peers, self._rank = peers.plans, rank

    def state(self, payload: int, stop: int) -> tuple[int, int]:
        """How many new things there are and the stop status, as rank 0 sees them. Raises Gone."""
        if self._rank == 0:
            self._tell(HEAD.pack(payload, stop))
            return payload, stop
        size, status = HEAD.unpack(_exactly(self._peers[0], HEAD.size))
        return size, status

    def objects(self, held: Any) -> Any:
        """Rank 0's object, on every rank. Raises Gone."""
        if self._rank == 0:
            data = pickle.dumps(held)
            self._tell(struct.pack("!Q", len(data)) + data)
            return held
        size = struct.unpack("!Q", _exactly(self._peers[0], 8))[0]
        return pickle.loads(_exactly(self._peers[0], size))

    def add_up(self, tensor: torch.Tensor) -> None:
        """Make a contiguous tensor on the CPU the sum of all ranks', the same bits on each. Raises Gone.

        The thread that takes the plans has to call this, on all ranks in the same order.
        """
        data = memoryview(tensor.view(-1).view(torch.uint8).numpy())
        if self._rank:
            self._peers[0].sendall(data)
            _fill(self._peers[0], data)
            return
        theirs = torch.empty_like(tensor)
        for rank in sorted(self._peers):
            _fill(self._peers[rank], memoryview(theirs.view(-1).view(torch.uint8).numpy()))
            tensor.add_(theirs)
        self._tell(data)

    def _tell(self, data: bytes | memoryview) -> None:
        for rank, peer in self._peers.items():
            try:
                peer.sendall(data)
            except OSError as error:
                raise Gone(f"Connection closed by rank {rank}: {error}") from error


class Watch(threading.Thread):
    """Ends this process, by ``end(reason)``, when a peer's connection closes, is silent, or our own loop stands still.

    Until ``arm`` only a closed connection counts: loading and compiling hold a process up for long.
    ``progress`` gives a number that changes while the loop runs.
    """

    def __init__(self, peers: Peers, silence: float, progress: Callable[[], int], end: Callable[[str], None]) -> None:
        super().__init__(name="watch", daemon=True)
        self._lives, self._silence, self._progress, self._end = peers.lives, silence, progress, end
        self._stall = 0.0
        self._heard = dict.fromkeys(peers.lives, time.monotonic())
        self._selector = selectors.DefaultSelector()
        for rank, peer in peers.lives.items():
            peer.setblocking(False)
            self._selector.register(peer, selectors.EVENT_READ, rank)

    def arm(self, stall: float) -> None:
        """From now on silence counts, and a loop that stands still for ``stall`` seconds."""
        self._stall = stall

    def run(self) -> None:
        """Beat, listen and judge until the process ends."""
        beaten = moved = looked = time.monotonic()
        progress = self._progress()
        while True:
            reason = self._listen(BEAT / 2)
            now = time.monotonic()
            if now - looked > 1.0:  # this process itself was held up: nobody else is to blame for that time
                self._forgive(now)
                moved = now
            looked = now
            if now - beaten >= BEAT:
                beaten = now
                self._beat()
            if (current := self._progress()) != progress:
                progress, moved = current, now
            if not reason and self._stall:
                reason = self._silent(now) or self._stuck(now - moved)
            if reason:
                self._end(reason)
                return

    def _listen(self, timeout: float) -> str:
        for key, _ in self._selector.select(timeout) if self._lives else _nothing(timeout):
            try:
                said = self._lives[key.data].recv(4096)
            except BlockingIOError:
                continue
            except OSError:
                said = b""
            if not said:
                return f"Connection closed by rank {key.data}: it is gone"
            self._heard[key.data] = time.monotonic()
        return ""

    def _beat(self) -> None:
        for peer in self._lives.values():
            try:
                peer.send(b".")
            except OSError:
                pass  # full, as its reader is stopped, or closed: both are seen where we listen

    def _forgive(self, now: float) -> None:
        self._heard = dict.fromkeys(self._heard, now)

    def _silent(self, now: float) -> str:
        for rank, heard in self._heard.items():
            if now - heard > self._silence:
                return f"Timed out waiting for a sign of life of rank {rank}, for {self._silence:g} s"
        return ""

    def _stuck(self, still: float) -> str:
        return (
            f"Timed out after {still:.1f} s in which the loop of this rank stood still" if still > self._stall else ""
        )


def _nothing(timeout: float) -> list[Any]:
    time.sleep(timeout)
    return []


def leave(code: int) -> NoReturn:
    """End the process whatever its threads are stuck in: not even CUDA can hold it."""
    os._exit(code)
