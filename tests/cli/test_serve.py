"""What ``serve`` does with a service that it does not follow."""

from __future__ import annotations

import pytest

from allranks.cli import serve
from allranks.engines.engine import LogFilter
from allranks.node.status import Status


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
    assert serve._until_ready(gang, lambda: True, "http://here:8000") == 0
    assert gang.detached
    assert capfd.readouterr().out == "http://here:8000\n"


def test_ranks_that_run_and_do_not_answer_are_said_to_be_awaited(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "PATIENCE", 0.0)
    answers = iter([False, False, True])
    assert serve._until_ready(Gang("running"), lambda: next(answers), "http://here:8000") == 0
    assert capfd.readouterr().err.count("chat runs, and does not answer yet at http://here:8000") == 1


@pytest.mark.parametrize(("code", "told"), [(65, 65), (0, 70), (None, 70)])
def test_a_service_that_ends_before_it_answers_has_failed_whatever_its_ranks_said(code: int | None, told: int) -> None:
    assert serve._until_ready(Gang("failed", code), lambda: False, "") == told
