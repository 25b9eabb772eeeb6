"""One log file read on as it grows, as lines for people.

The files hold every byte. What is read here is for people: a line beyond LONGEST is cut with a note, and of a progress
bar that draws itself again and again only its state every BAR seconds is a line.
"""

from __future__ import annotations

import os
import re
import time
from typing import List, Optional, Tuple

from allranks.node import logs as files

CHUNK = 64 * 1024
"""Bytes taken from one file before the next has its turn."""

LONGEST = CHUNK
"""Bytes of a line without an end that are shown."""

BAR = 5.0
"""Seconds between two lines for a progress bar that is still moving."""

_UP = re.compile(r"\x1b\[\d*[AF]")  # how several bars are drawn: each line goes back up over the ones before


class Tail:
    """One log file, read on from where the last read ended. ``after`` leaves out what was printed before that moment.

    ``at_end`` says that there was nothing more when it was last read.
    """

    def __init__(self, path: str, limit: int, after: Optional[float] = None) -> None:
        self._path, self._limit = path, limit
        self._offset = 0 if after is None else _line_start(path, files.size_at(path, after))
        self._partial = b""
        self._left_out: Optional[int] = None  # bytes of the line that is being cut; None between lines
        self._frame = ""
        self._bar_at = time.monotonic()
        self.at_end = False

    def read(self) -> List[str]:
        """The whole lines among the next CHUNK bytes, and now and then the state of a progress bar."""
        lines: List[str] = []
        new = self._next(lines)
        self.at_end = not new
        lines += self._split(new)
        if not lines and time.monotonic() - self._bar_at > BAR:
            lines = self._bar()
        return lines

    def skip(self) -> List[str]:
        """Leave out all but the last CHUNK bytes, where there are more to come, with a note."""
        try:
            begin = _line_start(self._path, max(0, os.stat(self._path).st_size - CHUNK))
        except FileNotFoundError:
            return []
        if begin <= self._offset:
            return []
        left_out, self._offset = begin - self._offset, begin
        return [*self._rest(), f"allranks: {left_out:,} bytes of this log are left out here: the run ended before they "
                "could be shown"]  # fmt: skip

    def rest(self) -> List[str]:
        """The last line, which has no end and will not get one."""
        return self._rest()

    # ---- bytes

    def _next(self, lines: List[str]) -> bytes:
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

    def _split(self, new: bytes) -> List[str]:
        lines: List[str] = []
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

    def _shorten(self) -> List[str]:
        """Keep a progress bar's last state; cut what is no bar."""
        self._partial = self._partial[self._partial.rstrip(b"\r").rfind(b"\r") + 1 :]
        if len(self._partial) < LONGEST:
            return []
        piece, rest = _cut(self._partial)
        self._partial, self._left_out = b"", len(rest)
        return [_decode(piece)]

    def _end_of_cut(self) -> List[str]:
        left_out, self._left_out = self._left_out, None
        return [f"allranks: {left_out:,} more bytes of this line are in {self._path}"] if left_out else []

    def _without_frames(self, texts: List[str]) -> List[str]:
        """Of lines that go back up, the last before another line: they draw over each other."""
        lines = []
        for text in texts:
            if "\x1b[" in text and _UP.search(text):
                self._frame = text
                continue
            if self._frame:
                lines.append(self._frame)
                self._frame = ""
            lines.append(text[:-1] if text.endswith("\r") else text)
        return lines

    def _bar(self) -> List[str]:
        """The state of what is being drawn, if anything is."""
        self._bar_at = time.monotonic()
        frame, self._frame = self._frame, ""
        if b"\r" in self._partial:
            frame = _decode(self._partial)
            self._partial = self._partial[self._partial.rstrip(b"\r").rfind(b"\r") + 1 :]
        return [frame] if frame else []

    def _rest(self) -> List[str]:
        partial, self._partial = self._partial, b""
        frame, self._frame = self._frame, ""
        lines = self._end_of_cut()
        return lines + [text for text in (frame, _decode(partial)) if text]


def _decode(data: bytes) -> str:
    return data.decode(errors="replace")


def _cut(data: bytes) -> Tuple[bytes, bytes]:
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
