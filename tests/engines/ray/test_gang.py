"""The coordinator's own life, without Ray."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Serve's, where it is imported


class Door:
    """One that has no seat until ``answer`` is changed."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {"wait": "a seat"}
        self.join = self.report = SimpleNamespace(remote=lambda *_: SimpleNamespace(result=lambda **_: self.answer))


def test_serves_thread_is_free_while_a_gang_starts_so_that_it_can_be_told_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from allranks.engines.ray import gang

    door = Door()
    here = SimpleNamespace(replica_id=SimpleNamespace(unique_id="a"), app_name="chat")
    theirs = SimpleNamespace(get_replica_context=lambda: here, get_deployment_handle=lambda *_: door)
    monkeypatch.setattr(gang, "serve", theirs)
    monkeypatch.setattr(gang, "BEAT", 0.01)

    async def start() -> None:
        one = gang.Gang.__new__(gang.Gang)
        starting = asyncio.ensure_future(one.__init__({"gang": {"grace": 0}}))  # type: ignore[misc]
        await asyncio.wait([starting], timeout=0.2)
        assert not starting.done()
        one.__del__()  # which Serve calls on the thread that awaits the start
        door.answer = {"over": "no restart is left"}
        await starting

    with pytest.raises(RuntimeError, match="no restart is left"):
        asyncio.run(asyncio.wait_for(start(), 20))
