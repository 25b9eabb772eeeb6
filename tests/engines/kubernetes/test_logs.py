"""How long who follows lines waits for more of them."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from allranks.engines.engine import LogFilter
from allranks.engines.kubernetes import logs
from allranks.node.status import Status


@pytest.mark.parametrize("phase", ["idle", "failed"])
def test_the_last_words_of_a_command_are_not_awaited_as_those_of_a_run(
    monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    monkeypatch.setattr(logs, "SETTLED", 0.1)
    monkeypatch.setattr(logs, "LAST_WORDS", 1.0)
    status = Status("gang", "jobset", phase, world_size=1)
    watch: Any = SimpleNamespace(pods=[], speakers=[], outages=[], status=lambda: status)
    client: Any = None
    began = time.monotonic()
    list(logs.follow(client, watch, logs.Wanted(LogFilter(), 0, None, 1), 1, lambda _: True))
    took = time.monotonic() - began
    assert (phase == "idle") is (0.1 <= took < 0.9), took
