"""A local run's directory: where it is, who holds it, and what it truthfully says.

``<state>/runs/<name>/`` holds ``spec.yaml``, ``plan.json``, ``status.json``, ``lock``, ``cancel``, ``secret``,
``logs/attempt-<a>/`` (``rank-<r>.log`` with its ``.times``) and ``evidence/attempt-<a>/``. The run's supervisor keeps a
POSIX lock on ``lock`` for as long as it lives, so a run is alive exactly while that lock is held, whatever was killed
and however.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from allranks.errors import EngineError
from allranks.node.cause import Cause
from allranks.node.gang import Gang, load
from allranks.node.processes import start_time
from allranks.node.status import NodeStatus, RankStatus, Status

KEPT = 3
"""Finished runs of one name that are kept beside the newest: ``<name>.1`` is the one before."""

_FLOCK = "hhqqi4x"  # struct flock of Linux on 64-bit machines: type, whence, start, len, pid
_SUPERVISOR_GONE = 70


@dataclass(frozen=True)
class Holder:
    """The process that keeps a run alive; ``start`` is field 22 of its /proc stat, so a reused pid is not it."""

    pid: int
    start: int


@dataclass(frozen=True)
class RunDir:
    """One run's directory; nothing is read before it is asked for."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def gang(self) -> Gang:
        """The plan as its agents got it. Raises EngineError when it is not there or not readable."""
        try:
            return load(str(self.plan))
        except (OSError, ValueError, TypeError) as error:
            raise EngineError(f"run {self.name}: its plan cannot be read: {error}") from error

    def holder(self) -> Holder | None:
        """The living supervisor, or None."""
        return holder_of(self.lock)

    def status(self) -> Status:
        """What is known of the run. A run whose supervisor is gone without a last word has failed, and says so."""
        alive = self.holder() is not None  # asked first: what is written before the lock is let go is then seen
        status = self._recorded()
        if status is None:
            status = Status(name=self.name, engine="local", phase="pending")
            if not alive and lock_holder(submit_lock()) is None:
                _end(status, f"it could not be started: {self._last_words()}")
        elif not alive and not status.is_over:
            _end(status, f"its supervisor (pid {self._last_pid()}) is gone")
        return status

    def attempts(self) -> list[int]:
        """The attempts that have logs, in order."""
        found = (re.fullmatch(r"attempt-(\d+)", entry) for entry in _entries(self.logs))
        return sorted(int(match[1]) for match in found if match)

    def age(self) -> float:
        """When the run was submitted, in seconds since 1970."""
        try:
            return self.plan.stat().st_mtime
        except OSError:
            return 0.0

    def _recorded(self) -> Status | None:
        try:
            data = json.loads((self.path / "status.json").read_bytes())
            status = Status.from_json(data)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise EngineError(f"run {self.name}: {self.path / 'status.json'} cannot be read: {error}") from error
        if status.name != self.name:  # an earlier run of a name that was used again: it moved, its logs with it
            status.causes = [replace(cause, log=self._moved(cause, status.name)) for cause in status.causes]
            status.name = self.name
        return status

    def _moved(self, cause: Cause, old_name: str) -> str:
        old = f"{self.path.with_name(old_name)}/"
        return f"{self.path}/{cause.log[len(old) :]}" if cause.log.startswith(old) else cause.log

    def _last_words(self) -> str:
        try:
            return (self.logs / "init.log").read_text(errors="replace").splitlines()[-1]
        except (OSError, IndexError):
            return "its supervisor said nothing"

    def _last_pid(self) -> str:
        try:
            return self.lock.read_text().split()[0]
        except (OSError, IndexError):
            return "unknown"


def _end(status: Status, reason: str) -> None:
    status.end("failed", reason, _SUPERVISOR_GONE)
    for node in status.nodes:
        _end_node(node)


def _end_node(node: NodeStatus) -> None:
    if node.phase not in ("succeeded", "failed", "cancelled"):
        node.phase = "failed"
    node.ranks = [RankStatus(r.rank, r.local_rank, None, "ended", r.exit) for r in node.ranks]


# Where runs are


def home(variable: str, default: str) -> Path:
    """An XDG base directory; as its standard says, a relative value does not count."""
    value = os.environ.get(variable, "")
    return Path(value) if os.path.isabs(value) else Path.home() / default


def state_home() -> Path:
    return home("XDG_STATE_HOME", ".local/state") / "allranks"


def cache_home() -> Path:
    return home("XDG_CACHE_HOME", ".cache") / "allranks"


def runs_home() -> Path:
    return state_home() / "runs"


def submit_lock() -> Path:
    """Held while a run is being made, so that two of one name cannot both begin."""
    return runs_home() / ".submit"


def all_runs() -> list[RunDir]:
    """Every run on this machine, newest first."""
    runs = [RunDir(runs_home() / entry) for entry in _entries(runs_home()) if not entry.startswith(".")]
    return sorted((run for run in runs if run.plan.exists()), key=lambda run: (-run.age(), run.name))


def move_aside(run: RunDir) -> None:
    """Free a finished run's name: it becomes ``<name>.1``, the one before ``<name>.2``, and the oldest goes."""
    from shutil import rmtree

    names = [run.path, *(run.path.with_name(f"{run.name}.{number}") for number in range(1, KEPT + 1))]
    if names[-1].exists():
        rmtree(names[-1])
    for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
        if newer.exists():
            newer.rename(older)


def _entries(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


# Locks, processes, files


def lock_holder(path: Path) -> int | None:
    """The pid that holds the POSIX lock on a file, or None. It asks the kernel and takes nothing, disturbing nobody."""
    try:
        with path.open("rb") as file:
            answer = fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except (FileNotFoundError, NotADirectoryError):
        return None
    kind, _, _, _, pid = struct.unpack(_FLOCK, answer)
    return None if kind == fcntl.F_UNLCK else pid


def holder_of(path: Path) -> Holder | None:
    """The living process that holds the POSIX lock on a file, or None."""
    pid = lock_holder(path)
    start = start_time(pid) if pid is not None else None
    return Holder(pid, start) if pid is not None and start else None


def until(true: Callable[[], bool], timeout: float) -> bool:
    """Wait until something is true, at most ``timeout`` seconds. The kernel tells nobody that a lock was let go."""
    give_up = time.monotonic() + timeout
    while not true():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.01)
    return True


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn what a full, read-only or foreign disk says into the folder's name and the way out, as EngineError."""
    try:
        yield
    except OSError as error:
        raise EngineError(
            f"cannot write the run's directory {folder}: {error.strerror or error}\n"
            "Runs are kept under $XDG_STATE_HOME (default ~/.local/state); set it to a folder that can be written."
        ) from error


@contextmanager
def exclusive(path: Path, timeout: float) -> Iterator[None]:
    """Hold the POSIX lock on a file. Raises EngineError after ``timeout`` seconds, naming who has it."""
    give_up = time.monotonic() + timeout
    with path.open("wb") as file:
        while True:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except (BlockingIOError, PermissionError):
                if time.monotonic() > give_up:
                    pid = lock_holder(path)
                    raise EngineError(f"another allranks (pid {pid}) holds {path} for over {timeout:.0f} s") from None
                time.sleep(0.02)  # POSIX locks offer no wait with a deadline
        yield
