"""What this machine has of a service on Ray: ``<state>/ray/<name>/``, kept by its keeper.

It holds ``spec.yaml``, ``plan.json``, ``status.json``, ``lines.jsonl`` (what the ranks printed), ``keeper.log``,
``lock`` and, of a cluster that was our own, its logs. The newest run of a name takes the place of the one before.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.engines.local.rundir import Holder, holder_of, runs_home
from allranks.node import logs
from allranks.node.status import Status

SOME = 2**20
"""Bytes of lines that are read at a time."""
ORPHAN = "its keeper on this machine was killed, and nobody follows it"


@dataclass(frozen=True)
class RunDir:
    """One service's directory; nothing is read before it is asked for."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def record(self) -> Path:
        return self.path / "status.json"

    @property
    def _lines(self) -> Path:
        return self.path / "lines.jsonl"

    def keep(self, lines: Iterable[Sequence[Any]], limit: int) -> None:
        """Write down lines as the door has them; the oldest go where all are more than ``limit`` bytes.

        Raises OSError where there is no room for all of them; then none is written.
        """
        data = "".join(json.dumps(line) + "\n" for line in lines).encode()
        with self._lines.open("ab", buffering=0) as file:
            before = os.fstat(file.fileno()).st_size
            if file.write(data) < len(data):
                file.truncate(before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._lines))
        logs.cut(str(self._lines), limit)

    def kept(self, at: int = 0) -> Iterator[tuple[list[Sequence[Any]], int]]:
        """Yield those from an offset in the file on, some at a time, each time with the next offset."""
        try:
            with self._lines.open("rb") as file:
                while True:
                    at = max(0 if at > os.fstat(file.fileno()).st_size else at, logs.beginning(file.fileno()))
                    file.seek(at)
                    found = [line for line in file.readlines(SOME) if line.endswith(b"\n")]
                    if not found:
                        return
                    at += sum(map(len, found))
                    yield [json.loads(line) for line in found if line.startswith(b"[")], at  # else it tells of a cut
        except FileNotFoundError:
            return

    @property
    def scratch(self) -> Path:
        """The file that names the folder of a Ray cluster of our own."""
        return self.path / "scratch"

    def keeper(self) -> Holder | None:
        """The living keeper, or None."""
        return holder_of(self.path / "lock")

    def is_orphan(self) -> bool:
        """Whether its keeper was killed, and may have left something behind."""
        try:
            return self.keeper() is None and not Status.from_json(json.loads(self.record.read_bytes())).is_over
        except (OSError, ValueError, TypeError):
            return False

    def status(self) -> Status:
        """What is known. A service whose keeper was killed may go on on a cluster of somebody's, so it is not over."""
        orphan = self.is_orphan()  # asked first: what is written before the lock is let go is then seen
        try:
            status = Status.from_json(json.loads(self.record.read_bytes()))
        except (OSError, ValueError, TypeError):
            status = Status(self.name, "ray", "pending")
        if orphan and not status.is_over:
            status.reason = f"{ORPHAN}; end what is left: allranks cancel {self.name}"
        return status


def clear(run: RunDir) -> None:
    """Remove a finished run, and what a keeper that was killed has left of its cluster."""
    try:
        left = Path(run.scratch.read_text())
    except OSError:
        left = run.scratch
    if left.name.startswith("allranks-ray-"):
        shutil.rmtree(left, ignore_errors=True)
    shutil.rmtree(run.path, ignore_errors=True)


def home() -> Path:
    """Where all of them are."""
    return runs_home().with_name("ray")


def all_runs() -> list[RunDir]:
    """Every service on Ray that this machine knows, newest first."""
    found = [RunDir(path) for path in home().glob("*") if (path / "plan.json").exists()]
    return sorted(found, key=lambda run: (-run.plan.stat().st_mtime, run.name))
