"""Which engines there are, and what is said of the others."""

from __future__ import annotations

import subprocess
import sys

import pytest

from allranks import engines
from allranks.engines.engine import CanLog
from allranks.errors import UsageError


def test_the_local_engine_is_found_by_name_and_keeps_logs() -> None:
    engine = engines.get("local")
    assert engine.name == "local"
    assert isinstance(engine, CanLog)


def test_a_mistyped_engine_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"^no such engine: locl; allowed: local, .*; did you mean local\?$"):
        engines.get("locl")


def test_the_registry_imports_nothing_heavy() -> None:
    engines = "allranks.engines.local.control, allranks.engines.ray.control"
    code = f"import sys, {engines}; print({{'pydantic', 'rich', 'click', 'ray', 'torch'}} & {{*sys.modules}})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
