"""How one rank ended, as its own node sees it: wait status and last lines become kind and message."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import asdict, dataclass
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from allranks.node import lastwords, processes

# What a rank says when another one has gone (gloo, NCCL, TCPStore and c10d, as users have pasted them).
SURVIVOR = re.compile(
    r"Connection (reset|closed|refused)|[Cc]onnection was (reset|closed|aborted)|Broken pipe|Socket ?Timeout|"
    r"ncclRemoteError|ncclSystemError|remote process exited|should dump|"
    r"Rendezvous(Closed|Connection|Timeout)|RendezvousGracefulExit|"
    r"DistNetworkError|DistStoreError|[Ff]ailed to recv|recvValue failed|sendBytes failed|store->get|"
    r"[Ww]atchdog caught|[Ww]atchdog (thread )?(got stuck|terminated)|"
    r"connectFullMesh|Timed out (waiting|after)|barrier.*timed? ?out|"
    r"ncclCommAbort|NCCL communicator was aborted|[Cc]onnection unexpectedly closed",
)
# What a rank says that ends because it alone has noticed that another one is silent: serving/peers.py.
MISSED = re.compile(r"\bTimed out waiting for a sign of life of rank (\d{1,7})\b")
# These words too come in a DistNetworkError, of the rank that did break it.
PORT_TAKEN = re.compile(r"EADDRINUSE|[Aa]ddress already in use|Errno 98\b")
PORT = re.compile(r"\bport:? ?(\d+)")
NO_MEMORY = re.compile(
    r"(^|\.)(MemoryError|OutOfMemoryError|_ArrayMemoryError)\b|(CUDA|HIP|XPU) out of memory|std::bad_alloc|"
    r"CUDA error: out of memory|'out of memory'|cudaErrorMemoryAllocation|hip(Error)?OutOfMemory|"
    r"CUBLAS_STATUS_ALLOC_FAILED|can't allocate memory|Cannot allocate memory|Errno 12\b"
)
WRITE_FAILED = "PytorchStreamWriter failed writing"
NEARLY_FULL = 16 * 1024
IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError"}
LONGEST_MESSAGE = 400
PYTHON_FAILED = 1
BY_ITSELF = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP)


@dataclass(frozen=True)
class Death:
    """A rank's end. ``exit`` is the shell's code; ``asked`` is true when its agent had told it to stop before.

    ``echo``: by what it said it fell because another rank had. ``missed`` is a rank that it says was silent.
    """

    rank: int
    node: int
    kind: str
    message: str
    exit: int
    signal: Optional[str] = None
    tail: Tuple[str, ...] = ()
    log: str = ""
    asked: bool = False
    echo: bool = False
    missed: Optional[int] = None

    @property
    def failed(self) -> bool:
        return self.exit != 0

    @property
    def survivor(self) -> bool:
        """Whether it looks like the echo of another rank's death."""
        return self.echo or self.signal in ("SIGTERM", "SIGPIPE")

    def to_json(self) -> Dict[str, Any]:
        return {**asdict(self), "tail": list(self.tail)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Death:
        """Raises TypeError or ValueError for anything but what ``to_json`` gives."""
        death = cls(**{**data, "tail": tuple(str(line) for line in data["tail"])})
        numbers = (death.rank, death.node, death.exit, death.missed or 0)
        if not all(isinstance(number, int) for number in numbers):
            raise ValueError("rank, node, exit and missed are numbers")
        return death


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe(rank: int, node: int, status: int, log: str, error: str = "", asked: bool = False) -> Death:
    """Classify a raw wait status. ``error`` is what else is known, such as why the program could not be started."""
    lines = lastwords.read(log)
    name = None
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name, code = signal_name(number), 128 + number
        kind, message, said = _from_signal(number, lines, error)
    else:
        code = os.WEXITSTATUS(status)
        kind, message, said = _from_output(code, lines)
        message = (error or message) + (_of_the_disk(message, log) if code else "")
    message = message if len(message) <= LONGEST_MESSAGE else message[: LONGEST_MESSAGE - 3] + "..."
    echo = bool(code and SURVIVOR.search(said)) and not PORT_TAKEN.search(said)
    missed = MISSED.search(said) if code else None
    about = int(missed[1]) if missed else None
    return Death(rank, node, kind, message, code, name, lastwords.tail(lines), log, asked, echo, about)


def _from_signal(number: int, lines: Sequence[str], error: str) -> Tuple[str, str, str]:
    """Kind, message, and all that was said about it."""
    said = lastwords.fatal(lines) if number in BY_ITSELF else ""
    if number == signal.SIGINT and lastwords.exception(lines):
        said = "KeyboardInterrupt"
    message = f"killed by {signal_name(number)}" + (f" ({error})" if error else "") + (f": {said}" if said else "")
    return ("oom" if NO_MEMORY.search(said) else "signal"), message, said


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


def _from_output(code: int, lines: Sequence[str]) -> Tuple[str, str, str]:
    """Kind, message, and all that was said about it."""
    if not code:
        return "exit", "exited with code 0", ""
    found = lastwords.exception(lines)
    if found is None:
        broke = next((line.strip() for line in lines if line.startswith("Fatal Python error: init_")), "")
        if broke:  # below it is where its interpreter was, which is nowhere
            return "exit", f"exited with code {code}; {broke}", broke
        said = lines[-1].strip() if lines else ""
        return (
            "exit",
            f"exited with code {code}" + (f"; its last line: {said}" if said else ", and had printed nothing"),
            said,
        )
    if NO_MEMORY.search(found.text):
        kind = "oom"
    elif found.name.rsplit(".", 1)[-1] in IMPORT_ERRORS:
        kind = "import"
    else:
        kind = "exception"
    line = found.line + _of_the_port(found.text)
    if code != PYTHON_FAILED:  # it was caught, and the program then chose how to end
        return ("oom" if kind == "oom" else "exit"), f"exited with code {code} after {line}", found.text
    return kind, line, found.text


def _of_the_port(text: str) -> str:
    """Who holds the port that a rank could not have."""
    port = PORT.search(text) if PORT_TAKEN.search(text) else None
    holder = processes.listener(int(port[1])) if port else None
    return f" (port {port[1]} is held by process {holder[0]}: {holder[1]})" if port and holder else ""
