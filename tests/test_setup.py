"""What a new user is told when this machine cannot be set up."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As much of a checkout as setup reads before it would fetch anything."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    return tmp_path


def test_no_python_is_told_with_the_command_that_brings_it(checkout: Path) -> None:
    assert setup(checkout, "python-nowhere") == (
        "setup: no python-nowhere on PATH\n"
        "setup: allranks is built with Python 3.10 to 3.14: apt-get install python3 python3-venv\n"
    )


@pytest.mark.parametrize("version", ["3.9", "3.15", "2.7"])
def test_a_python_that_is_too_old_or_too_new_is_told_with_the_way_out(version: str, checkout: Path) -> None:
    python = program(checkout / "python", f"echo {version}")
    assert setup(checkout, str(python)) == (
        f"setup: {python} is Python {version}; 3.10 to 3.14 can be used\n"
        "setup: name another one: make setup PYTHON=/path/to/python3.12\n"
    )


def test_a_python_without_venv_is_told_with_the_package_that_has_it(checkout: Path) -> None:
    python = program(checkout / "python", 'case "$2" in *ensurepip*) exit 1 ;; esac; echo 3.11')
    assert setup(checkout, str(python)) == (
        f"setup: {python} has no venv module\nsetup: on Debian and Ubuntu: apt-get install python3-venv\n"
    )


def test_a_second_setup_does_nothing() -> None:
    done = subprocess.run(["make", "--question", "setup"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def setup(checkout: Path, python: str) -> str:
    """Return what setup complains of; it must fail and leave nothing."""
    before = sorted(checkout.iterdir())
    done = subprocess.run(
        ["bash", "scripts/setup.sh"],
        cwd=checkout,
        env={"PATH": "/usr/bin:/bin", "PYTHON": python},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert sorted(checkout.iterdir()) == before
    return done.stderr
