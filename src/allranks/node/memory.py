"""Whether the kernel ended a process of this node for memory, and by which limit.

A process that the OOM killer ends looks like one that somebody killed: SIGKILL. What tells them apart are counters:
``oom_kill`` of the memory cgroup that the process was in (memory.events in version 2, memory.oom_control in version 1,
see the kernel's admin-guide/cgroup-v2 and cgroup-v1/memory), and of the whole host in /proc/vmstat. They rise before
the signal is sent. The kernel's log would say more, but containers cannot read it.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from dataclasses import dataclass, replace
from typing import Callable, Dict, List, Mapping, Optional, Tuple

from allranks.node.death import Death

INTERVAL = 1.0
"""Seconds between two looks."""

WINDOW, HOST_WINDOW = 10.0, 2.0
"""How long after the kill its end may be seen: giving back much memory takes a while. The host's counter counts
everybody's processes, so that it must fit more closely."""

UNLIMITED = 2**60
NEARLY = 0.95
HELPER_KILLED = re.compile(
    r"killed by signal: Killed|terminated with signal SIGKILL|died with <Signals\.SIGKILL|BrokenProcessPool"
    r"|DataLoader worker .* exited unexpectedly|exit ?code:? -9|exited with code 137"
)
"""What a rank says when a process of its own was killed: torch's DataLoader and spawn, subprocess, pools, shells."""


# ---- cgroups


@dataclass(frozen=True)
class Group:
    """A memory cgroup: its folder, its name as /proc tells it, and its version, 1 or 2."""

    folder: str
    name: str
    version: int

    @property
    def kills(self) -> Optional[int]:
        """How many processes in it were killed for memory; None when it does not say."""
        return _counter(
            os.path.join(self.folder, ("memory.oom_control", "memory.events")[self.version - 1]), "oom_kill"
        )

    @property
    def hits(self) -> Optional[int]:
        """How often its own limit was met."""
        if self.version == 2:
            return _counter(os.path.join(self.folder, "memory.events"), "oom")
        return _number(os.path.join(self.folder, "memory.failcnt"))

    @property
    def was_full(self) -> bool:
        """Whether it has ever held nearly all that its limit allows, by its own word."""
        peak = _number(os.path.join(self.folder, ("memory.max_usage_in_bytes", "memory.peak")[self.version - 1]))
        return peak is not None and self.limit is not None and peak >= self.limit * NEARLY

    @property
    def limit(self) -> Optional[int]:
        """In bytes; None when there is none."""
        found = _number(os.path.join(self.folder, ("memory.limit_in_bytes", "memory.max")[self.version - 1]))
        return found if found is not None and found < UNLIMITED else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _number(path: str) -> Optional[int]:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _counter(path: str, name: str) -> Optional[int]:
    found = re.search(rf"^{name} (\d+)$", _read(path), re.MULTILINE)
    return int(found[1]) if found else None


def groups(told: str, mounts: str, root: str = "/") -> List[Group]:
    """The memory cgroup that a process is in and those above it that can be seen, nearest first.

    ``told`` is the text of /proc/PID/cgroup, ``mounts`` of /proc/self/mountinfo. In a container the mount shows a part
    of the host's tree (its fourth field says which), with a cgroup namespace both start at the container's own.
    """
    lines = [line.split(":", 2) for line in told.splitlines() if line.count(":") >= 2]
    version_1 = [(path, 1) for _, controllers, path in lines if "memory" in controllers.split(",")]
    version_2 = [(path, 2) for number, controllers, path in lines if number == "0" and not controllers]
    for path, version in version_1 + version_2:
        for shown, point in _mounts(mounts, version):
            inside = os.path.relpath(path, shown) if path.startswith(shown) else "."
            top = os.path.join(root, point.lstrip("/"))
            found = _chain(top, path, inside, version) or _chain(top, path, ".", version)
            if found:
                return found
    return []


def _mounts(mounts: str, version: int) -> List[Tuple[str, str]]:
    """Which part of the tree is mounted, and where."""
    found = []
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.partition(" ")
        if kind == "cgroup2" if version == 2 else kind == "cgroup" and "memory" in re.split("[ ,]", options):
            found.append((fields.split()[3], fields.split()[4]))
    return found


def _chain(top: str, path: str, inside: str, version: int) -> List[Group]:
    found = []
    while True:
        group = Group(os.path.normpath(os.path.join(top, inside)), path, version)
        if group.kills is not None:
            found.append(group)
        if inside in (".", "") or inside.startswith(".."):
            return found
        inside, path = os.path.dirname(inside) or ".", os.path.dirname(path)


# ---- kills


@dataclass
class Kill:
    """A rise of a counter by one, when it was seen; without ``group`` it is the host's."""

    at: float
    group: Optional[Group]
    claimed: bool = False


class Memory:
    """Watches the counters for one node's ranks. ``pids`` gives the living ones with their process ids."""

    def __init__(self, pids: Callable[[], Mapping[int, int]], root: str = "/") -> None:
        self._pids, self._root = pids, root
        self._mountinfo = _read(os.path.join(root, "proc/self/mountinfo"))
        self._chains: Dict[str, List[Group]] = {}
        self._counts: Dict[Group, int] = {}
        self._hits: Dict[Group, int] = {}
        self._host: Optional[int] = None
        self._own: List[Group] = []
        self._of: Dict[int, List[Group]] = {}
        self._kills: List[Kill] = []

    def open(self) -> None:
        self._watching = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            self.look()

    def begin(self) -> None:
        """An attempt begins: what was killed before is not its affair."""
        self._of.clear()
        self.look()
        self._kills.clear()
        self._hits = {group: group.hits or 0 for chain in self._chains.values() for group in chain}

    def look(self) -> None:
        """Take down which counters have risen."""
        self._own = self._find("self")
        for rank, pid in self._pids().items():
            if rank >= 0 and pid:
                self._of[rank] = _unless_ending(self._find(str(pid))) or self._of.get(rank, [])
        now, seen = time.monotonic(), 0
        for group in {chain[0] for chain in self._chains.values() if chain}:
            count = group.kills
            if count is not None:
                rise = count - self._counts.get(group, count)
                self._counts[group] = count
                self._kills += [Kill(now, group) for _ in range(rise)]
                seen += max(rise, 0)
        host = _counter(os.path.join(self._root, "proc/vmstat"), "oom_kill")
        if host is not None:
            rise = host - (host if self._host is None else self._host)
            self._host = host
            self._kills += [Kill(now, None) for _ in range(rise - seen)]

    def _find(self, pid: str) -> List[Group]:
        told = _read(os.path.join(self._root, "proc", pid, "cgroup"))
        if told not in self._chains:
            self._chains[told] = groups(told, self._mountinfo, self._root)
            for group in self._chains[told]:
                self._hits.setdefault(group, group.hits or 0)
        return self._chains[told]

    def explain(self, death: Death, used: int = 0) -> Death:
        """The death as it is if the kernel killed the rank, or a process of the rank's own, for memory.

        ``used`` is the most memory in bytes that the rank has held, 0 if nobody knows.
        """
        if death.asked or not death.failed:
            return death
        self.look()
        if death.signal == "SIGKILL":
            kill = self._claim(death.rank)
            if kill is not None:
                amount = f", rank {death.rank} used {in_words(used)} at most" if used else ""
                how = death.message.replace("killed by SIGKILL", "killed by the kernel for memory", 1)
                return replace(death, kind="oom", message=f"{how}: {self._why(kill)}{amount}")
        elif HELPER_KILLED.search(death.message):
            helpers = [kill for kill in self._kills if kill.group is not None]
            if helpers:
                why = f"{death.message} (the kernel killed a process of its node for memory: {self._why(helpers[-1])})"
                return replace(death, kind="oom", message=why)
        return death

    def _claim(self, rank: int) -> Optional[Kill]:
        """The newest kill that can have been this rank's. One kill ends one rank."""
        now = time.monotonic()
        chain = self._of.get(rank, [])
        for kill in reversed(self._kills):
            if kill.claimed or now > kill.at + (WINDOW if kill.group else HOST_WINDOW):
                continue
            if kill.group in chain[:1] or (not chain and (kill.group is None or kill.group in self._own)):
                kill.claimed = True
                return kill
        return None

    def _why(self, kill: Kill) -> str:
        """Which limit it was: the nearest that was met since the attempt began; none when all memory was used up."""
        if kill.group is None:
            return "this host's count of such kills rose, and its own cgroup's cannot be read"
        chain = next(chain for chain in self._chains.values() if chain[:1] == [kill.group])
        for group in chain:
            if group.limit is not None and (group.hits or 0) > self._hits[group]:
                whose = "its cgroup's limit" if group is chain[0] else f"the limit of the cgroup {group.name} above it"
                return f"{whose} is {in_words(group.limit)}"
        for group in chain:  # sandboxes such as gVisor count kills, and not how often the limit was met
            if group.was_full:
                return f"its cgroup's limit is {in_words(group.limit or 0)}, and was nearly used up"
        total = re.search(r"^MemTotal: *(\d+) kB", _read(os.path.join(self._root, "proc/meminfo")), re.MULTILINE)
        return "this host's memory" + (f" of {in_words(int(total[1]) * 1024)}" if total else "") + " was used up"


def _unless_ending(chain: List[Group]) -> List[Group]:
    """In version 1 a process that is ending is told to be in the root."""
    return [] if chain and chain[0].version == 1 and chain[0].name == "/" else chain


def in_words(size: float) -> str:
    """Bytes for people."""
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:.0f} {units[0]}" if units[0] == "bytes" or size >= 100 else f"{size:.1f} {units[0]}"
