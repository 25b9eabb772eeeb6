"""The zygote's children: ranks and what they leave behind; forked, signalled only while unreaped, reaped, swept."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
import warnings
from dataclasses import dataclass
from typing import Dict, List, Optional, Set

from allranks.node import processes
from allranks.node.fork.caller import Caller
from allranks.node.fork.rank import NOT_EXECUTABLE, Job, Report


@dataclass
class Child:
    """A rank that was not reaped yet."""

    rank: int
    caller: Caller
    report: Report


class Children:
    """All of this process's children. Ends are told to whoever started the rank."""

    def __init__(self) -> None:
        self._zygote = os.getpid()
        self._ranks: Dict[int, Child] = {}

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def fork(self, job: Job, caller: Caller, report: Report) -> Optional[int]:
        """Return the child's pid, or 0 in the child (all signals blocked), or None when there could be none."""
        try:
            pid = _fork()
        except OSError as error:
            report.close()
            caller.send(_exit(job.rank, 0, NOT_EXECUTABLE << 8, 0, f"cannot fork: {error.strerror}"))
            return None
        if pid:
            os.close(report.writing)
            self._ranks[pid] = Child(job.rank, caller, report)
            caller.sessions.add(pid)
        return pid

    def close(self) -> None:
        """In a child: let go of what belongs to its sisters."""
        for child in self._ranks.values():
            os.close(child.report.reading)

    def has_ranks_of(self, node: Optional[int], except_for: Caller) -> bool:
        """Whether ranks of that node are left that another caller had started."""
        return any(c.caller is not except_for and c.caller.node == node for c in self._ranks.values())

    # ---- signals

    def signal(self, caller: Caller, number: int, rank: Optional[int] = None) -> None:
        """Signal the groups of one or all ranks of a caller."""
        for pid, child in self._ranks.items():
            if child.caller is caller and rank in (None, child.rank):
                processes.signal_group(pid, number)
                processes.signal_group(pid, signal.SIGCONT)  # a stopped rank would not notice

    # ---- ends

    def reap(self, ranks_only: bool) -> None:
        """Reap what has ended. In the midst of an import only ranks: the module may wait for a child of its own."""
        for which in list(self._ranks) if ranks_only else [-1]:
            while self._reap_one(which):
                pass

    def _reap_one(self, which: int) -> bool:
        try:
            pid, status, usage = os.wait4(which, os.WNOHANG)
        except ChildProcessError:
            return False
        child = self._ranks.pop(pid, None)
        if child is not None:
            child.caller.send(_exit(child.rank, pid, status, usage.ru_maxrss, child.report.read()))
        return pid != 0 and which == -1

    # ---- what ranks leave behind

    def sweep(self, caller: Optional[Caller]) -> List[int]:
        """Kill all descendants but other callers' live ranks with what is below them. Returns the pids killed."""

        def find() -> List[processes.Process]:
            self.reap(ranks_only=False)
            return processes.descendants(self._zygote, self._spared(caller))

        killed = processes.kill_all(find)
        self.reap(ranks_only=False)
        return sorted(killed)

    def _spared(self, caller: Optional[Caller]) -> Set[int]:
        """Live ranks of others and, while there are any, orphans that may be theirs: the last sweep takes those."""
        others = {pid for pid, c in self._ranks.items() if c.caller is not caller and not c.caller.gone}
        if not others:
            return set()
        children = [p for p in processes.running() if p.parent == self._zygote and p.pid not in self._ranks]
        return others | {p.pid for p in children if not _is_left_by(p, caller)}


def _is_left_by(orphan: processes.Process, caller: Optional[Caller]) -> bool:
    """Tell by the session or, for a daemon, by the environment that it was started with."""
    if caller is None or caller.node is None:
        return False
    node = processes.environment(orphan.pid).get(b"ALLRANKS_NODE")
    return orphan.session in caller.sessions or node == str(caller.node).encode()


def _exit(rank: int, pid: int, status: int, maxrss: int, error: str) -> Dict[str, object]:
    return {
        "event": "exit", "rank": rank, "pid": pid, "status": status, "at": time.time(), "maxrss_kb": maxrss,
        "error": error,
    }  # fmt: skip


def _fork() -> int:
    """Fork with all signals blocked: the child must not run our handlers. It unblocks them when they are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)  # else what C code printed while it was imported comes out of every rank
    gc.freeze()
    before = signal.pthread_sigmask(signal.SIG_SETMASK, set(signal.Signals))
    pid = -1
    try:
        with warnings.catch_warnings():  # python 3.12 warns of BLAS threads, which survive a fork
            warnings.simplefilter("ignore")
            pid = os.fork()
    finally:
        if pid != 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid
