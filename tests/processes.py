"""Which processes a test started and left behind, read from /proc."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Process:
    """``started`` is in clock ticks since boot; with it a pid that is used again is another process."""

    pid: int
    parent: int
    state: str
    started: int

    def __str__(self) -> str:
        return f"{self.pid} ({self.state}): {command_of(self.pid) or '?'}"


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent has died, so that a daemon cannot slip away unseen."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def command_of(pid: int) -> str:
    """Read the command line of a process: nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def all_processes() -> Iterator[Process]:
    """Everything that /proc lists."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name is in parentheses and may hold anything; the fields after it are numbers and letters.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                yield Process(int(entry.name), int(fields[1]), fields[0], int(fields[19]))


def descendants(root: int) -> set[Process]:
    """All living descendants of a process; those that have ended and are only not yet reaped do not count."""
    children: dict[int, list[Process]] = {}
    for process in all_processes():
        children.setdefault(process.parent, []).append(process)
    found: set[Process] = set()
    pending = [root]
    while pending:
        for child in children.get(pending.pop(), []):
            found.add(child)
            pending.append(child.pid)
    return {process for process in found if process.state not in "ZX"}


def wait_until_gone(known: set[Process], seconds: float) -> set[Process]:
    """Wait for this process's descendants, but for ``known``, to end; returns those that have not in time."""
    give_up = time.monotonic() + seconds
    empty_looks = 0
    while True:
        left = new_descendants(known)
        # One look can miss a child forked after the pids were listed, by a parent that ended before it was read.
        empty_looks = 0 if left else empty_looks + 1
        if empty_looks == 3 or (left and time.monotonic() > give_up):
            return left
        # Nothing announces the end of a grandchild, so look again.
        time.sleep(0.01)


def new_descendants(known: set[Process]) -> set[Process]:
    """All living descendants of this process but for ``known`` and Python's own."""
    same = {(process.pid, process.started) for process in known}
    return {p for p in descendants(os.getpid()) if (p.pid, p.started) not in same and not is_pythons_own(p)}


def is_pythons_own(process: Process) -> bool:
    """Tell whether it is multiprocessing's resource tracker or fork server, which live as long as their interpreter."""
    command = command_of(process.pid)
    return "multiprocessing.resource_tracker" in command or "multiprocessing.forkserver" in command


def kill(processes: set[Process]) -> None:
    """Kill them all, and whatever they start meanwhile."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
