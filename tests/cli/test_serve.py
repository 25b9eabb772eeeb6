"""How long ``serve`` stays, and what it does when it is not waited for."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allranks import engines
from allranks.cli import serve as serving
from allranks.cli.main import call
from allranks.engines.engine import LogFilter, Plan
from allranks.errors import Unreachable
from allranks.node.status import Status


class Elsewhere:
    """An engine and its one run, which is ready when ``looks`` says so."""

    name, lines = "elsewhere", LogFilter()

    def __init__(self, looks: Iterator[Any]) -> None:
        self._looks = looks
        self._status = Status("chat", "elsewhere", "starting")
        self.detached: bool | None = None

    def available(self) -> str:
        return ""

    def plan_service(self, service: Any, folder: Path) -> Plan:
        return Plan("chat", "elsewhere", (), address="http://chat")

    def submit(self, plan: Plan, *, detach: bool) -> Elsewhere:
        self.detached = detach
        return self

    def status(self) -> Status:
        return self._status

    def answers(self, plan: Plan) -> bool:
        look = next(self._looks)
        if isinstance(look, Exception):
            raise look
        return bool(look() if callable(look) else look)

    def cancel(self, *, reason: str, code: int) -> None:
        self._status.end("cancelled", reason, code)

    def detach(self) -> None: ...

    def wait(self, timeout: float) -> bool:
        return False


def serve(monkeypatch: pytest.MonkeyPatch, folder: Path, *looks: Any) -> tuple[Elsewhere, int]:
    engine = Elsewhere(iter(looks))
    monkeypatch.setattr(engines, "get", lambda _: engine)
    spec = folder / "service.yaml"
    spec.write_text("kind: Service\nname: chat\nmodel: /m\nreplicas: 2\n")
    return engine, call(["serve", str(spec)])


def test_several_gangs_are_let_go_of_once_they_answer_as_nobody_follows_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine, code = serve(monkeypatch, tmp_path, False, True)
    assert (engine.detached, code) == (True, 0)
    assert capsys.readouterr().out == "http://chat\n"


def test_an_api_server_that_is_away_for_a_moment_does_not_end_the_wait(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert serve(monkeypatch, tmp_path, Unreachable("away"), True)[1] == 0


def test_ctrl_c_ends_a_service_that_is_not_ready_yet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine, code = serve(monkeypatch, tmp_path, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert (engine.status().phase, engine.status().reason, code) == ("cancelled", "cancelled by Ctrl-C", 130)


class Gang:
    """A run whose ranks run, and that is let go of or not."""

    name, lines = "chat", LogFilter()

    def __init__(self, phase: str, exit_code: int | None = None) -> None:
        self.found = Status("chat", "ray", phase, exit_code=exit_code)
        self.detached = False

    def status(self) -> Status:
        return self.found

    def cancel(self, *, reason: str, code: int) -> None:
        raise AssertionError(reason)

    def detach(self) -> None:
        self.detached = True

    def wait(self, timeout: float) -> bool:
        return False


def test_a_service_that_answers_is_let_go_of(capfd: pytest.CaptureFixture[str]) -> None:
    gang = Gang("running")
    assert serving._until_ready(gang, lambda: True, "http://here:8000") == 0
    assert gang.detached
    assert capfd.readouterr().out == "http://here:8000\n"


def test_ranks_that_run_and_do_not_answer_are_said_to_be_awaited(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "SILENCE", 0.0)
    answers = iter([False, False, True])
    assert serving._until_ready(Gang("running"), lambda: next(answers), "http://here:8000") == 0
    assert capfd.readouterr().err.count("chat runs, and does not answer yet at http://here:8000") == 1


@pytest.mark.parametrize(("code", "told"), [(65, 65), (0, 70), (None, 70)])
def test_a_service_that_ends_before_it_answers_has_failed_whatever_its_ranks_said(code: int | None, told: int) -> None:
    assert serving._until_ready(Gang("failed", code), lambda: False, "") == told


@pytest.mark.gang
def test_a_server_that_ends_by_itself_starts_again_and_has_failed_in_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "service.yaml").write_text('kind: Service\nname: brief\nrun: "true"\nfailure: {restarts: 1}\n')
    assert call(["serve", str(tmp_path / "service.yaml")]) == 1
    why = "rank 0 on node 0: ended with 0, and nobody had ended the service (restarts: 1 of 1 used)"
    assert why in capfd.readouterr().err
