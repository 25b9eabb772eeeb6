"""How fast two nodes send to each other over TCP, each way: plain sockets in threads, so that heartbeats go on."""

from __future__ import annotations

import hmac
import socket
import struct
import threading
import time
from typing import Tuple

SECONDS = 0.3
"""For which each way is sent; what is then still in buffers counts with its time."""

PATIENCE = 10.0
PIECE = bytes(256 << 10)
RATE = struct.Struct("!d")
TOKEN = 32


def token_of(secret: bytes, node: int) -> bytes:
    """What a peer must say first to node ``node``: only members of the run know it."""
    return hmac.new(secret, f"probe\n{node}".encode(), "sha256").hexdigest()[:TOKEN].encode()


def listen(address: str, token: bytes) -> socket.socket:
    """Serve probes until the socket is closed; its port is the kernel's choice. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    server.bind((address, 0))
    server.listen(8)
    threading.Thread(target=_accept, args=(server, token), daemon=True).start()
    return server


def _accept(server: socket.socket, token: bytes) -> None:
    while True:
        try:
            peer, _ = server.accept()
        except OSError:
            return  # it was closed
        threading.Thread(target=_answer, args=(peer, token), daemon=True).start()


def _answer(peer: socket.socket, token: bytes) -> None:
    """Count what comes, say how fast it came, send as much time back."""
    with peer:
        try:
            peer.settimeout(PATIENCE)
            if not hmac.compare_digest(_exactly(peer, TOKEN), token):
                return
            peer.sendall(RATE.pack(_count(peer)))
            _send(peer)
        except OSError:
            pass  # the other side says so


def measure(address: str, port: int, token: bytes) -> Tuple[float, float]:
    """Bytes a second to the peer, and from it. Raises OSError, with what did not get through."""
    try:
        with socket.create_connection((address, port), PATIENCE) as peer:
            peer.settimeout(PATIENCE)
            peer.sendall(token)
            _send(peer)
            peer.shutdown(socket.SHUT_WR)
            (there,) = RATE.unpack(_exactly(peer, RATE.size))
            return there, _count(peer)
    except socket.timeout as error:
        raise OSError(f"no answer from {address}:{port} within {PATIENCE:g} s") from error
    except OSError as error:
        raise OSError(f"{address}:{port}: {error.strerror or error}") from error


def _send(peer: socket.socket) -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        peer.sendall(PIECE)


def _count(peer: socket.socket) -> float:
    """Bytes a second until the other side has no more."""
    buffer, total = bytearray(len(PIECE)), 0
    began = time.monotonic()
    while True:
        got = peer.recv_into(buffer)
        if not got:
            break
        total += got
    return total / max(time.monotonic() - began, 1e-6)


def _exactly(peer: socket.socket, size: int) -> bytes:
    said = b""
    while len(said) < size:
        piece = peer.recv(size - len(said))
        if not piece:
            raise OSError("it hung up")
        said += piece
    return said
