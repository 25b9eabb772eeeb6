"""Ways to call the command line: in this process, and as one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from allranks.cli.main import call
from allranks.engines.local.control import ENGINE

ROOT = Path(__file__).parents[2]
ENTRY = [sys.executable, "-m", "tests.cli.entry"]


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


Allranks = Callable[..., Said]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An empty folder to be in, some activated environment, and no run left at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    yield
    for status in ENGINE.list():
        ENGINE.cancel(status.name, reason="the test is over")


@pytest.fixture
def allranks(capfd: pytest.CaptureFixture[str]) -> Allranks:
    """Call a command line in this process."""

    def allranks(*argv: str) -> Said:
        capfd.readouterr()
        code = call(argv)
        return Said(code, *capfd.readouterr())

    return allranks


@pytest.fixture
def process() -> Allranks:
    """Call a command line as a process; its runs have the stand-in for a supervisor."""

    def process(*argv: str) -> Said:
        done = subprocess.run([*ENTRY, *argv], capture_output=True, text=True, timeout=60, check=False)
        return Said(done.returncode, done.stdout, done.stderr)

    return process


def job(act: str, *options: str) -> list[str]:
    """A command line that runs the stand-in's acts as a gang of two nodes with one rank each."""
    return ["run", "--nodes", "2", "--name", "digits", "--env", f"ACT={act}", *options, "--", "sh", "-c", "true"]
