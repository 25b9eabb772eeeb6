"""Runs an example as its README says: through the command line, in a copy of its folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@dataclass(frozen=True)
class Example:
    """A copy of an example's folder; what its ranks write goes to ``out`` in it."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def run(self, *options: str) -> str:
        """Submit and follow; returns all output. The run must succeed."""
        return finish([*allranks(), "run", *options, "job.yaml"], self.folder)

    def status(self) -> dict[str, Any]:
        """Return what ``status -o json`` prints."""
        status: dict[str, Any] = json.loads(finish([*allranks(), "status", self.name, "-o", "json"], self.folder))
        return status

    def pids(self) -> dict[int, int]:
        """Return the pid of each rank that has one."""
        ranks = [rank for node in self.status()["nodes"] for rank in node["ranks"]]
        return {rank["rank"]: rank["pid"] for rank in ranks if rank["pid"]}

    def logs(self, *options: str) -> str:
        """Return what the ranks printed."""
        return finish([*allranks(), "logs", self.name, *options], self.folder)

    def cancel(self) -> None:
        """End the run; one that is over already stays as it is."""
        subprocess.run([*allranks(), "cancel", self.name], cwd=self.folder, capture_output=True, timeout=60)

    def torchrun(self, ranks: int, *command: str) -> str:
        """Run a program of this folder without allranks; returns all output. It must succeed."""
        # What --standalone means, but by address: a bare root has no /etc/hosts, and so no localhost.
        alone = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", *alone, f"--nproc-per-node={ranks}"]
        return finish([*torchrun, *command], self.folder, OMP_NUM_THREADS="1")


def copy_of(name: str, to: Path) -> Example:
    """Copy an example, without what earlier runs left in it."""
    return Example(
        Path(shutil.copytree(EXAMPLES / name, to / name, ignore=shutil.ignore_patterns("out", "__pycache__")))
    )


def allranks() -> list[str]:
    return [str(Path(sys.executable).with_name("allranks"))]


def finish(command: list[str], folder: Path, **env: str) -> str:
    """Run a command to its end, which must be 0; returns what it wrote to both outputs."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def wait_for(what: str, happened: Callable[[], bool], seconds: float = 120) -> None:
    """Wait for something that only shows in files or in a status; fails naming it when it takes too long."""
    give_up = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < give_up, f"not within {seconds} s: {what}"
        time.sleep(0.05)
