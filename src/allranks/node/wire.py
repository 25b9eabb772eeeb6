"""How agents and the coordinator talk: JSON lines over TCP, authenticated, bounded, versioned (docs/protocol.md).

Both sides prove that they know the run's secret before either says anything of the run; after that each line
carries a code made with a key of this connection alone, the direction and a count, so a line can be neither
forged, repeated nor moved.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from typing import Any, Dict, Optional

PROTOCOL = 1
LINE_LIMIT = 64 * 1024
HANDSHAKE_TIMEOUT = 5.0
SEND_BUFFER_LIMIT = 4 * 1024 * 1024

Message = Dict[str, Any]


class WireError(Exception):
    """The peer is no member of this run, or does not speak as one."""


def _code(key: bytes, *parts: str) -> str:
    return hmac.new(key, "\n".join(parts).encode(), "sha256").hexdigest()[:32]


class Wire:
    """One authenticated connection. ``receive`` gives None when the peer has gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, side: str) -> None:
        self._reader, self._writer, self._key = reader, writer, key
        self._side, self._peer_side = side, "client" if side == "server" else "server"
        self._sent = self._received = 0

    @property
    def peer_address(self) -> str:
        return str((self._writer.get_extra_info("peername") or ("",))[0])

    @property
    def own_address(self) -> str:
        return str((self._writer.get_extra_info("sockname") or ("",))[0])

    def send(self, **message: Any) -> bool:
        """Queue a message; False when the peer has gone or does not read."""
        transport = self._writer.transport
        if transport.is_closing() or transport.get_write_buffer_size() > SEND_BUFFER_LIMIT:
            return False
        payload = json.dumps(message, separators=(",", ":"))
        code = _code(self._key, self._side, str(self._sent), payload)
        self._writer.write(f"{code} {payload}\n".encode())
        self._sent += 1
        return True

    async def receive(self) -> Optional[Message]:
        """The next message. Raises WireError for a line that is too long, not signed or not JSON."""
        line = await _read_line(self._reader)
        if line is None:
            return None
        code, _, payload = line.partition(" ")
        if not hmac.compare_digest(code, _code(self._key, self._peer_side, str(self._received), payload)):
            raise WireError("a line is not signed with the key of this connection")
        self._received += 1
        return _parse(payload)

    async def flush(self, timeout: float = 1.0) -> None:
        """Give what was queued a chance to leave."""
        try:
            await asyncio.wait_for(self._writer.drain(), timeout)
        except (OSError, asyncio.TimeoutError):
            pass  # the peer has gone: nobody is left to be told

    def close(self) -> None:
        self._writer.close()


async def _read_line(reader: asyncio.StreamReader) -> Optional[str]:
    try:
        raw = await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError:
        raise WireError(f"a line is longer than {LINE_LIMIT} bytes") from None
    except OSError:
        return None
    try:
        return raw[:-1].decode("ascii")
    except UnicodeDecodeError:
        raise WireError("a line is not ASCII") from None


def _parse(payload: str) -> Message:
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError):
        raise WireError("a line is not JSON") from None
    if not isinstance(message, dict):
        raise WireError("a line is not a JSON object")
    return message


async def _read_handshake(reader: asyncio.StreamReader) -> Message:
    line = await _read_line(reader)
    if line is None:
        raise WireError("the peer hung up during the handshake")
    message = _parse(line)
    if "refused" in message:
        raise WireError(str(message["refused"])[:200])
    return message


def _write_handshake(writer: asyncio.StreamWriter, **message: Any) -> None:
    writer.write(json.dumps(message).encode() + b"\n")


def _nonce(message: Message) -> str:
    nonce = message.get("nonce")
    if not isinstance(nonce, str) or not 16 <= len(nonce) <= 64 or not nonce.isalnum():
        raise WireError("the peer's handshake has no nonce")
    return nonce


def _check_version(message: Message) -> None:
    if message.get("allranks") != PROTOCOL:
        raise WireError(f"the peer speaks protocol {message.get('allranks')!r:.40}, this is protocol {PROTOCOL}")


def _check_code(message: Message, expected: str) -> None:
    code = message.get("code")
    if not isinstance(code, str) or not code.isascii() or not hmac.compare_digest(code, expected):
        raise WireError("the peer does not know this run's secret")


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes) -> Wire:
    """The coordinator's side of the handshake. Raises WireError; takes at most HANDSHAKE_TIMEOUT seconds."""

    async def shake() -> Wire:
        ours = secrets.token_hex(16)
        _write_handshake(writer, allranks=PROTOCOL, nonce=ours)
        answer = await _read_handshake(reader)
        try:
            _check_version(answer)
            theirs = _nonce(answer)
            _check_code(answer, _code(secret, "client", ours, theirs))
        except WireError as error:
            _write_handshake(writer, refused=str(error))
            raise
        _write_handshake(writer, code=_code(secret, "server", ours, theirs))
        return Wire(reader, writer, _code(secret, "session", ours, theirs).encode(), "server")

    return await _within(HANDSHAKE_TIMEOUT, shake())


async def dial(host: str, port: int, secret: bytes, source: Optional[str] = None) -> Wire:
    """Connect to the coordinator and prove membership. Raises WireError or OSError."""

    async def shake() -> Wire:
        local = (source, 0) if source else None
        reader, writer = await asyncio.open_connection(host, port, limit=LINE_LIMIT, local_addr=local)
        try:
            challenge = await _read_handshake(reader)
            _check_version(challenge)
            theirs, ours = _nonce(challenge), secrets.token_hex(16)
            _write_handshake(writer, allranks=PROTOCOL, nonce=ours, code=_code(secret, "client", theirs, ours))
            _check_code(await _read_handshake(reader), _code(secret, "server", theirs, ours))
        except BaseException:
            writer.close()
            raise
        return Wire(reader, writer, _code(secret, "session", theirs, ours).encode(), "client")

    return await _within(HANDSHAKE_TIMEOUT, shake())


async def _within(seconds: float, shake: Any) -> Wire:
    try:
        wire: Wire = await asyncio.wait_for(shake, seconds)
    except asyncio.TimeoutError:
        raise WireError(f"the handshake took longer than {seconds:g} s") from None
    return wire
