"""A run's state in words, and what is said when it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.cli import words
from allranks.cli.news import News
from allranks.cli.panel import headline
from allranks.node.cause import Cause, Secondary
from allranks.node.status import NodeStatus, Status

KILLED = Cause(0, "signal", "2026-01-02T03:04:05.678Z", "rank 2 on node 1: killed by SIGKILL", 2, 1, "SIGKILL", 137)


def status(phase: str, *, attempt: int = 0, used: int = 0, causes: int = 0, **fields: object) -> Status:
    """A gang of two nodes with four ranks, three restarts allowed."""
    nodes = [NodeStatus(0, "digits-0", phase="ready"), NodeStatus(1, "digits-1", phase="ready")]
    made = Status("digits", "local", phase, attempt=attempt, restarts={"used": used, "allowed": 3}, world_size=4)
    made.nodes = nodes
    made.causes = [Cause(n, KILLED.kind, KILLED.at, KILLED.message) for n in range(causes)]
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_a_rank_that_dies_is_told_once_with_what_follows_from_it() -> None:
    news = News()
    assert news.of(status("running"), 0) == ["attempt 0: 4 ranks on 2 nodes running"]
    assert news.of(status("running"), 0.1) == []
    assert news.of(status("restarting", used=1, causes=1), 0.2) == [
        "attempt 0: rank 2 on node 1: killed by SIGKILL; restarting (1 of 3)"
    ]
    assert news.of(status("restarting", used=1, causes=1), 0.3) == []
    assert news.of(status("running", attempt=1, used=1, causes=1), 0.4) == ["attempt 1: 4 ranks on 2 nodes running"]


def test_an_attempt_that_broke_between_two_looks_is_told_as_well() -> None:
    assert News().of(status("running", attempt=2, used=2, causes=2), 0) == [
        "attempt 0: rank 2 on node 1: killed by SIGKILL; restarting (2 of 3)",
        "attempt 1: rank 2 on node 1: killed by SIGKILL; restarting (2 of 3)",
        "attempt 2: 4 ranks on 2 nodes running",
    ]


def test_the_cause_that_ends_a_run_is_not_told_as_a_restart() -> None:
    news = News()
    news.of(status("running"), 0)
    assert news.of(status("running", causes=1), 0.1) == []
    assert news.of(status("failed", causes=1), 0.2) == []


def test_waiting_is_told_after_a_second_and_again_when_it_changes() -> None:
    news, one = News(), status("pending")
    one.nodes[1] = NodeStatus(1, "digits-1", phase="pending", reason="its agent has not dialled in")
    text = "pending: 1 of 2 nodes there; waiting for digits-1 (its agent has not dialled in)"
    assert news.of(one, 10.0) == []
    assert news.of(one, 10.9) == []
    assert news.of(one, 11.0) == [text]
    assert news.of(one, 20.0) == []
    one.nodes[1].reason = "importing torch"
    assert news.of(one, 21.0) == ["pending: 1 of 2 nodes there; waiting for digits-1 (importing torch)"]


def test_waiting_that_changes_all_the_time_is_told_every_five_seconds() -> None:
    news, one = News(), status("starting")
    told = []
    for tenth in range(100):
        one.reason = f"{tenth} of 100 ranks started"
        told += news.of(one, tenth / 10)
    assert [line.split("; ")[1].split()[0] for line in told] == ["10", "60"]


def test_of_many_missing_nodes_three_are_named() -> None:
    one = status("pending", nodes=[NodeStatus(n, f"digits-{n}") for n in range(5)])
    assert words.awaited(one) == "0 of 5 nodes there; waiting for digits-0, digits-1, digits-2 and 2 more"


def test_why_nobody_has_made_the_pods_is_told() -> None:
    one = status("pending", nodes=[NodeStatus(n, f"digits-{n}") for n in range(2)])
    one.reason = "quota small does not allow it"
    assert words.awaited(one) == "0 of 2 nodes there; quota small does not allow it"


def test_notes_are_told_once() -> None:
    news = News()
    assert news.of(status("pending", notes=["one"]), 0) == ["note: one"]
    assert news.of(status("pending", notes=["one", "two"]), 0) == ["note: two"]


@pytest.mark.parametrize(
    ("seconds", "text"), [("04:05", "0:00"), ("04:17", "0:12"), ("15:04", "10:59"), ("59:59", "55:54")]
)
def test_a_time_is_told_in_minutes_and_seconds(seconds: str, text: str) -> None:
    one = status("succeeded", started="2026-01-02T03:04:05.000Z", ended=f"2026-01-02T03:{seconds}.999Z")
    assert words.took(one) == text
    one.ended = one.ended.replace("T03", "T13")
    assert words.took(one) == f"10:{text:0>5}"


def test_the_end_tells_why_with_last_lines_and_marks_what_only_followed() -> None:
    cause = Cause(
        0, "exit", KILLED.at, "rank 2 on node 1: exited with code 3", 2, 1, None, 3, ("step 7", "ValueError: no"),
        "/l/2.log", tuple(Secondary(rank, "exit", "Connection reset by peer") for rank in range(6)),
    )  # fmt: skip
    over = status("failed", used=2, reason="rank 2 on node 1: exited with code 3 (restarts: 2 of 2 used)")
    over.started, over.ended, over.causes = "2026-01-02T03:04:05Z", "2026-01-02T03:04:17Z", [cause]
    assert list(words.ending(over)) == [
        "digits failed in 0:12 after 2 restarts: rank 2 on node 1: exited with code 3 (restarts: 2 of 2 used)",
        "  | step 7",
        "  | ValueError: no",
        *(f"secondary: rank {rank}: Connection reset by peer" for rank in range(4)),
        "secondary: 2 more ranks",
        "full log: allranks logs digits --attempt 0 --rank 2",
    ]
    over.name = "digits (python 'my train.py')"  # what a command of an idle gang is told as
    assert list(words.ending(over))[-1] == "full log: allranks logs digits --attempt 0 --rank 2"


def test_a_log_that_is_here_is_named_by_its_path(tmp_path: Path) -> None:
    (log := tmp_path / "rank-2.log").touch()
    assert list(words.explained(Cause(0, "exit", KILLED.at, "broke", 2, 1, log=str(log)), "digits")) == [
        f"full log: {log}"
    ]


def test_a_run_that_succeeded_after_a_restart_does_not_repeat_the_old_cause() -> None:
    assert list(words.ending(status("succeeded", used=1, causes=1))) == ["digits succeeded after 1 restart"]


def test_the_footer_is_one_line_of_how_it_stands() -> None:
    assert headline(status("running", attempt=1, used=1)) == (
        "digits · running · attempt 1 · restarts 1 of 3 · 2 of 2 nodes there · -"
    )
