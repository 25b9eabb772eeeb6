"""What users may import, and what importing costs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import allranks

ROOT = Path(__file__).resolve().parents[1]


def test_the_public_names_are_these() -> None:
    assert sorted(allranks.__all__) == ["Error", "Job", "Service", "__version__", "checkpoint", "load"]


@pytest.mark.parametrize("name", allranks.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(allranks, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Jobb'"):
        allranks.Jobb  # noqa: B018


def test_importing_allranks_loads_nothing_else_of_ours() -> None:
    code = "import allranks, sys; print(*sorted(m for m in sys.modules if m.startswith('allranks')))"
    assert python(code) == "allranks"


def test_importing_the_node_side_loads_only_the_standard_library() -> None:
    code = (
        "import sys, pkgutil, importlib, allranks.node\n"
        "for m in pkgutil.walk_packages(allranks.node.__path__, 'allranks.node.'):\n"
        "    if not m.name.endswith('__main__'): importlib.import_module(m.name)\n"
        "tops = {m.partition('.')[0] for m, v in sys.modules.items() if getattr(v, '__file__', None)}\n"
        "print(*sorted(t for t in tops if t not in sys.stdlib_module_names and t not in ('__main__', 'allranks')))"
    )
    # -S: no site-packages, so no .pth file and no coverage hook imports anything either.
    assert python(code, "-S") == ""


def test_the_version_is_written_once() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", allranks.__version__)
    assert allranks.__version__ not in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("path", ["requirements.lock", "pyproject.toml", "Makefile", "scripts/setup.sh"])
def test_no_package_index_is_named(path: str) -> None:
    assert not re.findall(r"https?://|index-url\s*=", (ROOT / path).read_text())


def python(code: str, *flags: str) -> str:
    """Return what a fresh interpreter prints."""
    command = [sys.executable, *flags, "-c", code]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
