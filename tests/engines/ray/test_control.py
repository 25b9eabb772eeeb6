"""Start services on Ray where something is in the way; nothing of Ray's is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.engines.ray.control import ENGINE
from allranks.errors import EngineError
from allranks.spec.load import parse
from allranks.spec.service import Service

SPEC = "kind: Service\nname: chat\nrun: python server.py\nport: 18765\nengines: {ray: {port: 18766}}\n"


def test_a_state_directory_that_cannot_be_written_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    service = parse(SPEC)
    assert isinstance(service, Service)
    with pytest.raises(
        EngineError, match=r"^cannot write the run's directory .*/file/.*/chat: Not a directory\nRuns ar"
    ):
        ENGINE.submit(ENGINE.plan_service(service, tmp_path), detach=True)
