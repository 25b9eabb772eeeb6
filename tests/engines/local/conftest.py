"""A run on this machine whose supervisor is the stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks.engines.local import control
from allranks.engines.local.control import ENGINE, LocalRun

STAND_IN = Path(__file__).with_name("supervisor.py")


@pytest.fixture(autouse=True)
def activated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some environment is activated, so that plans have no note about the one that the tests run in."""
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere")


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[LocalRun]]:
    """Runs of the test, under the stand-in, ended when it is over."""
    monkeypatch.setattr(control, "SUPERVISOR", STAND_IN)
    runs: list[LocalRun] = []
    yield runs
    for status in ENGINE.list():
        ENGINE.cancel(status.name, reason="the test is over")
    for run in runs:
        assert run.wait(5)
