"""What can be done to a gang, and what its record must say of it afterwards.

A fault happens in a rank by itself (``program.py`` reads the draw), or is done from outside by ``Fault.strike``. Beside
the name stands what it needs, so that only gangs that can have it draw it.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.chaos.gangs import Gang

LEASE = 5.0


@dataclass(frozen=True)
class Drawn:
    """One fault of a run: what, in which attempt, where, and after how many steps of that attempt.

    ``shock`` is another one, done from outside ``wait`` seconds after this one, wherever the gang is by then.
    """

    name: str
    attempt: int
    rank: int
    node: int
    after: int
    wait: float
    early: bool
    code: int
    shock: str = ""


@dataclass(frozen=True)
class Expected:
    """What must stand in the cause. None where the draw does not decide it. ``ends``: phase and exit code."""

    kind: str
    rank: int | None = None
    node: int | None = None
    signal: str | None = None
    exit: int | None = None
    says: str = ""

    def complaint(self, cause: dict[str, Any]) -> str:
        """What differs, or nothing."""
        wanted = {"kind": self.kind, "rank": self.rank, "node": self.node, "exit": self.exit, "signal": self.signal}
        differing = [
            f"{key} is {cause[key]!r}, not {value!r}"
            for key, value in wanted.items()
            if cause[key] != value and (value is not None or key == "signal")
        ]
        if not re.search(self.says, cause["message"]):
            differing.append(f"no {self.says!r} in it")
        return "; ".join(differing) and f"{'; '.join(differing)} ({cause['message']})"


@dataclass(frozen=True)
class Fault:
    """``needs`` are words of ``Shape.has``. ``ends`` is the phase and exit code of a run that cannot go on after it."""

    name: str
    expected: Callable[[Drawn], Expected | None]
    needs: frozenset[str] = frozenset()
    strike: Callable[[Gang, Drawn], None] | None = None
    ends: tuple[str, int] | None = None
    weight: int = 2


Expects = Callable[[Drawn], Expected]


def of_rank(kind: str, exit: int | None = None, signal: str | None = None, says: str = "") -> Expects:
    """Blame the drawn rank; without ``exit``, the drawn code."""
    return lambda d: Expected(kind, d.rank, d.node, signal, d.code if exit is None else exit, says)


def lost_node(says: str) -> Expects:
    return lambda d: Expected("node_lost", None, d.node, None, 1, says)


def signal_rank(number: int) -> Callable[[Gang, Drawn], None]:
    return lambda gang, d: os.kill(gang.pid_of(d.rank), number)


def signal_agent(number: int) -> Callable[[Gang, Drawn], None]:
    return lambda gang, d: os.kill(gang.agent(d.node), number)


def kill_zygote(gang: Gang, d: Drawn) -> None:
    os.kill(gang.zygote(d.node), signal.SIGKILL)


def kill_supervisor(gang: Gang, d: Drawn) -> None:
    os.kill(gang.supervisor(d.node), signal.SIGKILL)


def kill_client(gang: Gang, d: Drawn) -> None:
    gang.kill_client()


def jump(gang: Gang, d: Drawn) -> None:
    """Set the wall clock of one node, which the gang must not care for."""
    gang.set_clock(d.node, (d.code - 64) * 1000.0)
    time.sleep(0.5)


def cut(seconds: float) -> Callable[[Gang, Drawn], None]:
    def strike(gang: Gang, d: Drawn) -> None:
        gang.cut(d.node)
        time.sleep(seconds)
        gang.heal(d.node)
        time.sleep(3.0)  # until TCP has sent again: two short cuts without it would be one long one

    return strike


def replace_node(gang: Gang, d: Drawn) -> None:
    """As an engine does with a pod on a node that is gone: first nothing, then another one, with nothing of the old."""
    gang.replace(d.node)


INSIDE = frozenset({"torch"})
NETWORK = frozenset({"network"})

FAULTS = [
    Fault("kill", of_rank("signal", 137, "SIGKILL", "by SIGKILL$"), strike=signal_rank(signal.SIGKILL), weight=5),
    Fault("kill in save", of_rank("signal", 137, "SIGKILL"), frozenset({"saves"})),
    Fault("segfault", of_rank("signal", 139, "SIGSEGV")),
    Fault("abort", of_rank("signal", 134, "SIGABRT")),
    Fault("exit", of_rank("exit", says="exited with code")),
    Fault("exception", of_rank("exception", 1, says="RuntimeError: drawn for rank")),
    Fault("import", of_rank("import", 1, says="not_there_at_all")),
    Fault("disk full", of_rank("exception", 1, says="No space left|no space left"), frozenset({"saves", "tmpfs"})),
    Fault("oom", of_rank("oom", 137, "SIGKILL"), frozenset({"memory"})),
    Fault("stop", of_rank("hang", 1, says="is stopped"), strike=signal_rank(signal.SIGSTOP)),
    Fault("gil", of_rank("hang", 1, says="has not answered")),
    Fault("spin", of_rank("hang", 1, says="had not entered all_reduce"), INSIDE),
    Fault("skip", of_rank("hang", 1, says="had not entered all_reduce"), INSIDE),
    Fault("mismatch", of_rank("hang", 1, says="is in all_gather"), INSIDE | {"majority"}),
    Fault("agent", lost_node("its agent was killed by SIGKILL"), frozenset({"other"}), signal_agent(signal.SIGKILL)),
    Fault("agent stop", lost_node("stopped|silent"), frozenset({"other"}), signal_agent(signal.SIGSTOP)),
    Fault("coordinator", lost_node("the coordinator was killed by SIGKILL"), frozenset({"first"}),
          signal_agent(signal.SIGKILL)),
    Fault("coordinator stop", lost_node("the coordinator was stopped"), frozenset({"first"}),
          signal_agent(signal.SIGSTOP), weight=1),
    Fault("zygote", lambda d: Expected("signal", None, None, "SIGKILL", 137, "with the zygote"), strike=kill_zygote),
    Fault("clock", lambda d: None, frozenset({"clock"}), jump),
    Fault("short cut", lambda d: None, NETWORK, cut(2.0), weight=5),
    Fault("long cut", lost_node("silent|closed"), NETWORK | {"other"}, cut(LEASE + 4.0), weight=5),
    Fault("pod", lost_node("silent|closed"), NETWORK | {"other"}, replace_node, weight=5),
    Fault("first cut", lambda d: Expected("node_lost", None, None, None, 1, "silent|closed"), NETWORK | {"first"},
          cut(LEASE + 4.0), weight=5),
    Fault("first pod", lambda d: Expected("node_lost", None, 0, None, 1, "the coordinator was lost"),
          NETWORK | {"first"}, replace_node, weight=5),
    Fault("client", lambda d: None, frozenset({"attached"}), kill_client, ends=("cancelled", 143)),
    Fault("supervisor", lambda d: None, frozenset({"local"}), kill_supervisor, ends=("failed", 70)),
]  # fmt: skip
SHOCKS = ("kill", "agent", "coordinator", "zygote")
BY_NAME = {fault.name: fault for fault in FAULTS}
