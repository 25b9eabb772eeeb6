"""Processes as the kernel shows them: who descends from whom, kill them all, die with the parent, title in ps."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from dataclasses import dataclass
from typing import Callable, Collection, Dict, Iterator, List, Optional, Set, Tuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KILL_SECONDS = 5.0
LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Process:
    """One line of /proc/PID/stat. ``state`` is a letter of proc(5): R, S, D, Z, T ..."""

    pid: int
    parent: int
    session: int
    state: str
    threads: int

    @property
    def is_alive(self) -> bool:
        """Not a zombie; one whose first thread has ended while others still have to is none yet."""
        return self.state not in "ZX" or self.threads > 1


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")


def die_with_parent(signum: int) -> None:
    """Ask the kernel for ``signum`` when the thread that forked us ends. Survives exec; not inherited by children."""
    _prctl(PR_SET_PDEATHSIG, signum)


def become_subreaper() -> None:
    """Descendants whose parent dies become our children, daemons included."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def read(pid: int) -> Optional[Process]:
    """Look up a process; None when there is none of that pid (any more)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Process(pid, int(fields[1]), int(fields[3]), fields[0], int(fields[17]))


def name_of(pid: int) -> str:
    """What the kernel calls it, at most 15 characters; empty when there is none of that pid (any more)."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().rstrip("\n")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def running() -> Iterator[Process]:
    """All processes that /proc shows."""
    for name in os.listdir("/proc"):
        process = read(int(name)) if name.isdigit() else None
        if process:
            yield process


def descendants(root: int, spare: Collection[int] = ()) -> List[Process]:
    """List the children of ``root``, theirs, and so on, parents first, without the branches below pids in ``spare``."""
    children: Dict[int, List[Process]] = {}
    for process in running():
        children.setdefault(process.parent, []).append(process)
    found: List[Process] = []
    generation = [root]
    while generation:
        born = [p for parent in generation for p in children.get(parent, ()) if p.pid not in spare]
        found += born
        generation = [p.pid for p in born]
    return found


def is_stopped(pid: int) -> bool:
    """Tell whether a signal has stopped it; a debugger that holds it does not count."""
    process = read(pid)
    return process is not None and process.state == "T"


def start_time(pid: int) -> int:
    """In clock ticks since boot: with the pid, names a process for good. 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def kill_descendants(root: int, keep: Collection[int] = (), seconds: float = KILL_SECONDS) -> Set[int]:
    """SIGKILL everything below ``root`` except ``keep`` and what is below those; see `kill_all`."""
    return kill_all(lambda: descendants(root, keep), seconds)


def kill_all(find: Callable[[], List[Process]], seconds: float = KILL_SECONDS) -> Set[int]:
    """SIGKILL what ``find`` returns until nothing of it is alive (a zombie is not).

    Again and again because a process may fork between the look and the kill, and twice in vain because one look can
    miss a child whose parent ended in the midst of it. Gives up after ``seconds`` on what sits in the kernel and
    cannot die. Returns the pids that were sent the signal.
    """
    killed: Set[int] = set()
    end = time.monotonic() + seconds
    looks_in_vain = 0
    while True:
        alive = [process for process in find() if process.is_alive]
        for process in alive:
            _kill(process.pid)
            killed.add(process.pid)
        looks_in_vain = 0 if alive else looks_in_vain + 1
        if looks_in_vain == 2 or (alive and time.monotonic() > end):
            return killed
        time.sleep(0.002 if alive else 0)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has ended, as was wanted


def reap_orphans(keep: Collection[int] = ()) -> None:
    """Reap ended children that were adopted; those in ``keep`` are left to whoever started them."""
    me = os.getpid()
    for process in running():
        if process.parent == me and process.state == "Z" and process.pid not in keep:
            try:
                os.waitpid(process.pid, os.WNOHANG)
            except ChildProcessError:
                pass  # somebody else has reaped it


def signal_group(pid: int, signum: int) -> None:
    """Signal the group that ``pid`` leads. ``pid`` must be a child of ours that was not reaped."""
    try:
        os.killpg(pid, signum)
    except ProcessLookupError:  # forked a moment ago, not yet in its own session
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            pass  # it has just ended


def signal_main_thread(pid: int, signum: int) -> None:
    """Signal that one thread: by the time another had taken it, a rank that was woken for it would have moved on."""
    try:
        failed = _libc.tgkill(pid, pid, signum)
    except AttributeError:  # a C library that has no such function
        os.kill(pid, signum)
        return
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def environment(pid: int) -> Dict[bytes, bytes]:
    """Read what the process was exec'd with; empty when it is gone or not ours to read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = file.read().split(b"\0")
    except OSError:
        return {}
    return dict(pair.partition(b"=")[::2] for pair in pairs if pair)


def listening(port: int) -> bool:
    """Tell whether some socket of this network namespace listens on the TCP port."""
    return any(row[3] == LISTEN and row[1].endswith(f":{port:04X}") for row in _tcp_rows())


def listener(port: int) -> Optional[Tuple[int, str]]:
    """The process that listens on a TCP port, and its command line; None where we may not see it."""
    sockets = {f"socket:[{row[9]}]" for row in _tcp_rows() if row[3] == LISTEN and row[1].endswith(f":{port:04X}")}
    for name in filter(str.isdigit, os.listdir("/proc") if sockets else ()):
        try:
            with os.scandir(f"/proc/{name}/fd") as handles:
                if sockets.isdisjoint(os.readlink(handle.path) for handle in handles):
                    continue
            with open(f"/proc/{name}/cmdline", "rb") as file:
                return int(name), file.read(200).replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            pass  # another user's, or it has just ended
    return None


def _tcp_rows() -> Iterator[List[str]]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                yield from (line.split() for line in file)
        except FileNotFoundError:  # no IPv6 here
            continue


class Title:
    """The command line in ps: the kernel reads it from our own memory, so it can be covered and put back."""

    def __init__(self) -> None:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        self._start, self._end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5)
        self._original = ctypes.string_at(self._start, self._end - self._start) if self._start else b""

    def cover(self, text: str) -> None:
        self._write(os.fsencode(text)[: max(len(self._original) - 1, 0)].ljust(len(self._original), b"\0"))

    def restore(self) -> None:
        self._write(self._original)

    def _write(self, raw: bytes) -> None:
        if self._original:
            ctypes.memmove(self._start, raw, len(raw))
