"""What this machine has of a service on Ray: ``<state>/ray/<name>/``, kept by its keeper.

It holds ``spec.yaml``, ``plan.json``, ``status.json``, ``lines.jsonl`` (what the ranks printed), ``keeper.log``,
``lock`` and, of a cluster that was our own, its logs. The newest run of a name takes the place of the one before.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from allranks.engines.local.rundir import Holder, holder_of, runs_home
from allranks.node.status import Status

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
    def lines(self) -> Path:
        return self.path / "lines.jsonl"

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
