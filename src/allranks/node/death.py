"""How one rank ended, as its own node sees it: wait status and last lines become kind and message."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

TAIL_LINES = 20
TAIL_WIDTH = 300
TAIL_BYTES = 32 * 1024

# What a rank says when another one has gone (gloo, NCCL, TCPStore and c10d, as users have pasted them).
SURVIVOR = re.compile(
    r"Connection (reset|closed|refused)|connection was (reset|closed|aborted)|Broken pipe|Socket ?Timeout|"
    r"ncclRemoteError|ncclSystemError|should dump|RendezvousClosed|RendezvousConnection|RendezvousTimeout|"
    r"DistNetworkError|DistStoreError|failed to recv|Failed to recv|recvValue failed|store->get|"
    r"watchdog|Watchdog|connectFullMesh|Timed out waiting|barrier.*timed? ?out",
)
EXCEPTION = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(: (?P<message>.*))?$")
EXCEPTION_NAMES = ("Error", "Exception", "Interrupt", "Exit")
TORCH_PREFIX = re.compile(r"^\[rank\d+\]: ?")  # torch repeats an uncaught exception with this before each line
WRITE_FAILED = "PytorchStreamWriter failed writing"
NEARLY_FULL = 16 * 1024
IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError"}


@dataclass(frozen=True)
class Death:
    """A rank's end. ``exit`` is the shell's code; ``asked`` is true when its agent had told it to stop before."""

    rank: int
    node: int
    kind: str
    message: str
    exit: int
    signal: Optional[str] = None
    tail: Tuple[str, ...] = ()
    log: str = ""
    asked: bool = False

    @property
    def failed(self) -> bool:
        return self.exit != 0

    @property
    def survivor(self) -> bool:
        """Whether it looks like the echo of another rank's death."""
        return bool(SURVIVOR.search(self.message)) or self.signal == "SIGTERM"

    def to_json(self) -> Dict[str, Any]:
        return {**asdict(self), "tail": list(self.tail)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Death:
        """Raises TypeError or ValueError for anything but what ``to_json`` gives."""
        death = cls(**{**data, "tail": tuple(str(line) for line in data["tail"])})
        if not (isinstance(death.rank, int) and isinstance(death.node, int) and isinstance(death.exit, int)):
            raise ValueError("rank, node and exit are numbers")
        return death


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def read_tail(path: str) -> Tuple[str, ...]:
    """The last lines of a log, bounded in number and width; a progress bar's line keeps its last state."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    lines = [line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n")]
    lines = [line[:TAIL_WIDTH] for line in lines if line.strip()]
    return tuple(lines[-TAIL_LINES:])


def describe(rank: int, node: int, status: int, log: str, error: str = "", asked: bool = False) -> Death:
    """Classify a raw wait status. ``error`` is what else is known, such as why the program could not be started."""
    tail = read_tail(log)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal_name(number)
        message = f"killed by {name}" + (f" ({error})" if error else "")
        return Death(rank, node, "signal", message, 128 + number, name, tail, log, asked)
    code = os.WEXITSTATUS(status)
    kind, message = _from_output(code, tail)
    message = (error or message) + (_of_the_disk(message, log) if code else "")
    return Death(rank, node, kind, message, code, None, tail, log, asked)


def _of_the_disk(message: str, log: str) -> str:
    """What the words of a rank do not say where a disk is full: it could not print them, or torch hides the reason."""
    if WRITE_FAILED in message:
        return " (torch says this when the disk that it saves to is full)"
    try:
        disk = os.statvfs(os.path.dirname(log))
    except OSError:
        return ""
    full = disk.f_bavail * disk.f_frsize < NEARLY_FULL
    return f" (the disk of its log is full: {log})" if full else ""


def _from_output(code: int, tail: Tuple[str, ...]) -> Tuple[str, str]:
    found = _last_exception(list(tail)) if code else None
    if found is None:
        return "exit", f"exited with code {code}"
    name, line = found
    return ("import" if name.rsplit(".", 1)[-1] in IMPORT_ERRORS else "exception"), line


def _last_exception(lines: List[str]) -> Optional[Tuple[str, str]]:
    """Name and line of the exception that ends the newest traceback."""
    plain = [TORCH_PREFIX.sub("", line) for line in lines]
    starts = [number for number, line in enumerate(plain) if line.startswith("Traceback (most recent call last)")]
    for line in plain[starts[-1] + 1 if starts else 0 :]:
        match = EXCEPTION.match(line)
        if match and (match["name"].endswith(EXCEPTION_NAMES) or (starts and match["message"])):
            return match["name"], line
    return None
