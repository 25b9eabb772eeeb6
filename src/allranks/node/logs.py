"""The ranks' log files: how large they may grow, how large they were when, and where their oldest part was cut.

Ranks write these files themselves (O_APPEND), so a file is neither renamed nor moved under them. Its oldest part is
given back to the disk as a hole: sizes and offsets stay what they were, appending goes on meanwhile, and a reader in
the midst of it keeps its place. The first line of a file that was cut says so. Where the file system makes no holes
(NFS before 4.2, vfat), the file is emptied.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
import time
from typing import Callable, Dict, List

from allranks.node.gang import Gang

INTERVAL = 1.0
"""Seconds between two looks: how exact times are, and for how long a file may be larger than allowed."""

MOST_MARKS = 16384
"""Marks of one file, 256 KiB. When it has them, those go without which the gap is still short against its age."""

FINENESS = 1 / 500
"""The longest such gap against its age: a month of one-second marks becomes 9,000 at most."""

_MARK = struct.Struct("<dQ")  # seconds since 1970, size in bytes
_HEAD = "allranks: the first {} bytes of this log were cut away: it had grown beyond {} bytes (logs.limit)\n"
_CUT = re.compile(rb"allranks: the first (\d+) bytes of this log were cut away: ")
_EMPTIED = "allranks: {} bytes before this line were cut away: the log had grown beyond {} bytes (logs.limit)\n"
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_NO_HOLES = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV)


class LogKeeper:
    """Looks at the logs of one node's ranks, every INTERVAL. ``note`` is told once if that fails."""

    def __init__(self, gang: Gang, node: int, note: Callable[[str], None]) -> None:
        self._gang, self._node, self._note = gang, node, note
        self._paths: List[str] = []
        self._sizes: Dict[str, int] = {}
        self._told = False

    def begin(self, attempt: int) -> None:
        """From now on look at the files of this attempt."""
        self._paths = [self._gang.log_of(attempt, rank) for rank in self._gang.ranks_of(self._node)]
        self._paths.append(self._gang.launcher_log_of(attempt, self._node))
        self._sizes.clear()

    def look(self) -> None:
        """Mark the files that have grown, and cut those that are too large."""
        for path in self._paths:
            try:
                self._look_at(path)
            except OSError as error:
                if not self._told:
                    self._told = True
                    self._note(f"cannot bound or index {path}: {error.strerror}")

    def _look_at(self, path: str) -> None:
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            return  # nothing was started that writes there
        if size != self._sizes.get(path, 0):
            self._sizes[path] = size
            if size > self._gang.log_limit:
                cut(path, self._gang.log_limit)
            mark(path, size)


# ---- size


def cut(path: str, limit: int) -> None:
    """Bring a file that holds more than ``limit`` bytes down to three quarters of that. Raises OSError."""
    handle = os.open(path, os.O_RDWR)  # without O_APPEND, which would make the kernel append the head
    try:
        size = os.fstat(handle).st_size
        if size - beginning(handle) <= limit:
            return
        begin = _next_line(handle, size - limit * 3 // 4)
        head = _HEAD.format(begin, limit).encode()
        os.pwrite(handle, head, 0)  # before the hole: who has read zeros finds the reason when it looks afterwards
        try:
            _punch(handle, len(head), begin - len(head))
        except OSError as error:
            if error.errno not in _NO_HOLES:
                raise
            _empty(path, handle, limit)
    finally:
        os.close(handle)


def beginning(handle: int) -> int:
    """The offset at which an open log begins; more than 0 once its oldest part was cut."""
    found = _CUT.match(os.pread(handle, 128, 0))
    return int(found[1]) if found else 0


def _next_line(handle: int, offset: int) -> int:
    """Where the next line begins, if it does so soon."""
    end = os.pread(handle, 64 * 1024, offset).find(b"\n")
    return offset + end + 1


def _punch(handle: int, offset: int, length: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    mode = _KEEP_SIZE | _PUNCH_HOLE
    if libc.fallocate(handle, mode, ctypes.c_long(offset), ctypes.c_long(length)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _empty(path: str, handle: int, limit: int) -> None:
    """Readers see the size fall, and begin anew."""
    size = os.fstat(handle).st_size
    os.ftruncate(handle, 0)
    forget_marks(path)
    with open(path, "ab") as file:
        file.write(_EMPTIED.format(size, limit).encode())


# ---- times


def marks_of(path: str) -> str:
    """The file beside a log that holds its marks."""
    return path + ".times"


def mark(path: str, size: int) -> None:
    """Remember that the log is this large by now. Raises OSError."""
    with open(marks_of(path), "ab") as file:
        count, torn = divmod(file.tell(), _MARK.size)
        if torn:  # a full disk took half of the last one
            file.truncate(count * _MARK.size)
        file.write(_MARK.pack(time.time(), size))
    if count >= MOST_MARKS:
        _thin(marks_of(path))


def _thin(path: str) -> None:
    with open(path, "rb") as file:
        marks = list(_MARK.iter_unpack(file.read()))
    now, kept = marks[-1][0], [marks[-1]]
    for mark, older in zip(marks[-2:0:-1], marks[-3::-1]):
        if abs(kept[-1][0] - older[0]) > (now - older[0]) * FINENESS:
            kept.append(mark)
    kept.append(marks[0])
    fresh = path + ".new"
    with open(fresh, "wb") as file:
        file.write(b"".join(_MARK.pack(*mark) for mark in reversed(kept)))
    os.replace(fresh, path)


def forget_marks(path: str) -> None:
    try:
        os.unlink(marks_of(path))
    except FileNotFoundError:
        pass  # it grew beyond its limit before the first look


def size_at(path: str, moment: float) -> int:
    """How large a log was at a moment (seconds since 1970): at least what had been printed INTERVAL before it.

    Everything that was printed later lies behind this offset; a clock that jumped back makes it show more, not less.
    """
    size = 0
    try:
        with open(marks_of(path), "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return 0
    for at, marked in _MARK.iter_unpack(data[: len(data) // _MARK.size * _MARK.size]):
        if at > moment:
            break
        size = marked
    return size
