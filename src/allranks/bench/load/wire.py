"""As little of HTTP/1.1 as it takes to ask and to hear each piece when it comes: the client is not what is measured."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

LONGEST = 2**20
"""Bytes of one line."""


class Failed(Exception):
    """There is no whole answer. ``kind`` is one word for counting: connect, cut, malformed."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Endpoint:
    """Where to ask. ``base`` is the path before /v1; ``key`` is sent as a bearer token where there is one."""

    host: str
    port: int
    secure: bool = False
    base: str = ""
    key: str = field(default="", repr=False)

    @staticmethod
    def parse(url: str, key: str = "") -> Endpoint:
        """Read ``http[s]://HOST[:PORT][/BASE][/v1]``. Raises ValueError."""
        found = urlsplit(url if "//" in url else f"http://{url}")
        if found.scheme not in ("http", "https") or not found.hostname:
            raise ValueError(f"found {url!r}; allowed is http://HOST:PORT or https://HOST:PORT")
        secure = found.scheme == "https"
        base = found.path.rstrip("/").removesuffix("/v1")
        return Endpoint(found.hostname, found.port or (443 if secure else 80), secure, base, key)

    def head(self, method: str, path: str, length: int) -> bytes:
        """The request's head. The connection is for one request alone."""
        lines = [f"{method} {self.base}{path} HTTP/1.1", f"host: {self.host}:{self.port}", "connection: close"]
        if self.key:
            lines.append(f"authorization: Bearer {self.key}")
        if length:
            lines += ["content-type: application/json", f"content-length: {length}"]
        return "\r\n".join([*lines, "", ""]).encode()


class Exchange:
    """One request and its answer, on a connection of its own. ``status`` and ``headers`` are there after ``ask``."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.status = 0
        self.headers: Mapping[str, str] = {}

    async def ask(self, method: str, path: str, body: bytes = b"") -> None:
        """Send, and read the answer's head. Raises Failed."""
        where = self._endpoint
        try:
            self._reader, self._writer = await asyncio.open_connection(
                where.host, where.port, limit=LONGEST, ssl=ssl.create_default_context() if where.secure else None
            )
        except (OSError, UnicodeError) as error:  # the latter of names that can be none
            said = getattr(error, "strerror", None) or error
            raise Failed("connect", f"{where.host}:{where.port}: {said}") from error
        try:
            self._writer.write(where.head(method, path, len(body)) + body)
            await self._read_head()
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Failed("cut", f"the connection ended before an answer: {error}") from error
        except (ValueError, asyncio.LimitOverrunError) as error:
            raise Failed("malformed", f"this is not HTTP: {error}") from error

    async def _read_head(self) -> None:
        assert self._reader is not None
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        protocol, status, *_ = head[0].split(" ")
        if not protocol.startswith("HTTP/1."):
            raise ValueError(f"found {head[0][:60]!r}")
        self.status = int(status)
        pairs = (line.partition(":") for line in head[1:] if line)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}

    async def lines(self) -> AsyncIterator[bytes]:
        """The body's lines as they come. Raises Failed when it is cut."""
        rest = b""
        async for block in self._blocks():
            *whole, rest = (rest + block).split(b"\n")
            for line in whole:
                yield line
        if rest:
            yield rest

    async def _blocks(self) -> AsyncIterator[bytes]:
        assert self._reader is not None
        try:
            if "chunked" in self.headers.get("transfer-encoding", ""):
                while size := int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16):
                    yield (await self._reader.readexactly(size + 2))[:-2]
            elif "content-length" in self.headers:
                yield await self._reader.readexactly(int(self.headers["content-length"]))
            else:
                while block := await self._reader.read(65536):
                    yield block
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Failed("cut", "the connection ended in the midst of the answer") from error
        except (ValueError, asyncio.LimitOverrunError) as error:
            raise Failed("malformed", f"this is not HTTP: {error}") from error

    async def whole(self) -> bytes:
        """All of the body. Raises Failed."""
        return b"\n".join([line async for line in self.lines()])

    def close(self) -> None:
        """Let go of the connection."""
        if self._writer is not None:
            self._writer.close()
