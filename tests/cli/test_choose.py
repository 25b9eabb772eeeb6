"""Which run a name means, where several engines know the name."""

from __future__ import annotations

import re
from typing import Any

import pytest

from allranks import engines
from allranks.cli import choose
from allranks.cli import list as list_
from allranks.cli.main import call
from allranks.engines.engine import ONLY_REMEMBERED
from allranks.errors import EngineError, NotFound, Unreachable
from allranks.node.status import Status


class Knows:
    """What of an engine is asked: it knows one run, or none."""

    def __init__(self, phase: str = "", *notes: str) -> None:
        self._phase, self._notes = phase, notes

    def list(self) -> list[Status]:
        if self._phase == "silent":
            raise EngineError("nobody answers")
        return [Status("gang", "some", self._phase)] if self._phase else []

    def status(self, name: str) -> Status:
        if not self._phase:
            raise NotFound(f"no run named {name}")
        return Status(name, "some", self._phase, notes=list(self._notes))


class Away:
    """One that cannot be asked now."""

    def __init__(self, error: Unreachable) -> None:
        self._error = error

    def status(self, name: str) -> Status:
        raise self._error


@pytest.fixture(autouse=True)
def _a_cluster_could_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "unasked", list)
    monkeypatch.setattr(list_, "unasked", list)


NOT, THERE, REMEMBERED, SILENT = Knows(), Knows("running"), Knows("cancelled", ONLY_REMEMBERED), Knows("silent")


@pytest.mark.parametrize(
    ("known", "chosen"),
    [([NOT, THERE], THERE), ([REMEMBERED, THERE], THERE), ([REMEMBERED, NOT], REMEMBERED)],
    ids=["one that is there", "one that is there before one that is only remembered", "one that is only remembered"],
)
def test_a_name_means(monkeypatch: pytest.MonkeyPatch, known: list[Any], chosen: Any) -> None:
    monkeypatch.setattr(engines, "usable", lambda: known)
    engine, _ = choose.pick("gang")
    assert engine is chosen


def test_a_name_that_nobody_knows_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "usable", lambda: [NOT, NOT])
    with pytest.raises(NotFound, match="no run named gang"):
        choose.pick("gang")


def test_a_misspelt_name_is_told_the_runs_of_every_engine_and_where_they_were_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Cluster(Knows):
        def status(self, name: str) -> Status:
            error = NotFound(f"no run named {name}")
            error.place = "namespace team-a of context lab"
            raise error

    monkeypatch.setattr(engines, "usable", lambda: [NOT, Cluster("running"), Cluster()])
    said = "no run named gan; did you mean gang?; runs here and in namespace team-a of context lab: gang"
    with pytest.raises(NotFound, match=f"^{re.escape(said)}$"):
        choose.pick("gan")
    monkeypatch.setattr(engines, "usable", lambda: [NOT, Cluster()])
    with pytest.raises(NotFound, match=r"^no run named gan; there are no runs here, nor in namespace team-a of con"):
        choose.pick("gan")


@pytest.mark.parametrize(
    ("known", "code", "said"),
    [
        ([NOT, NOT], 0, ["no runs yet; start one with: allranks run -- python SCRIPT"]),
        ([NOT, SILENT, SILENT], 69, ["allranks: nobody answers"]),
        ([THERE, SILENT], 0, ["allranks: runs not shown: nobody answers"]),
    ],
    ids=["none", "none that can be seen", "one, and perhaps others"],
)
def test_an_engine_that_cannot_be_asked_is_told_once_and_hides_no_run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], known: list[Any], code: int, said: list[str]
) -> None:
    monkeypatch.setattr(engines, "usable", lambda: known)
    assert call(["list"]) == code
    told = capfd.readouterr()
    assert told.err.splitlines() == said
    assert ("gang" in told.out) == (THERE in known)


def test_a_run_that_is_known_and_cannot_be_seen_is_told_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    unseen = Unreachable("the API server cannot be reached; gang was running")
    unseen.run = "gang"
    others = [NOT, Away(Unreachable("the API server cannot be reached"))]
    monkeypatch.setattr(engines, "usable", lambda: [*others, Away(unseen)])
    with pytest.raises(Unreachable, match=r"^the API server cannot be reached; gang was running$"):
        choose.pick("gang")


def test_the_engine_that_had_a_run_last_is_asked_before_others_that_must_ask_somebody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    class Remote(Knows):
        def __init__(self, name: str, phase: str = "") -> None:
            super().__init__(phase)
            self.name = name

        def recalled(self, name: str) -> str:
            return "third"

        def status(self, name: str) -> Status:
            asked.append(self.name)
            return super().status(name)

    known = [Remote("first"), NOT, Remote("second"), Remote("third", "running")]
    monkeypatch.setattr(engines, "usable", lambda: known)
    choose.pick("gang")
    assert asked == ["third"]


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["plan", "--check", "--", "true"], 69, "engine local has nobody to check a plan; engines that do: mpijob, "),
        (["doctor", "--rights", "--engine", "local"], 2, "--rights: engine local asks nobody for rights; engines that"),
        (["plan", "--engine", "jobset", "--as", "mpijob", "--", "true"], 2,
         "--as mpijob: engine jobset has no nodes that pretend; engines that do: local"),
    ],
)  # fmt: skip
def test_what_an_engine_does_not_do_is_told_with_those_that_do(
    argv: list[str], code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(argv) == code
    assert said in capfd.readouterr().err
