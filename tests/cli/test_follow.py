"""What is said at the end of a run that was followed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from allranks.cli.follow import follow
from allranks.engines.engine import LogFilter
from allranks.node.status import Status


@pytest.mark.parametrize("gone", [True, False])
def test_a_run_that_is_over_and_does_not_go_is_told(capsys: pytest.CaptureFixture[str], gone: bool) -> None:
    over = Status("digits", "jobset", "failed", "node 1: its pod was deleted", world_size=2, exit_code=1)
    run: Any = SimpleNamespace(name="digits", lines=LogFilter(), status=lambda: over, wait=lambda _: gone)
    engine: Any = SimpleNamespace(logs=lambda *_, **__: iter(()))
    assert follow(engine, run) == 1
    said = capsys.readouterr().err
    assert "digits failed" in said
    assert ("it has not gone yet; see: allranks status digits" in said) is not gone
