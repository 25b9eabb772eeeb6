"""What is left of a run where only 4096 bytes are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allranks.node import termination
from allranks.node.cause import Cause, Secondary
from allranks.node.status import NodeStatus, Status
from tests.node.gangs import make_gang


def cause(attempt: int, letter: str = "x") -> Cause:
    return Cause(
        attempt, "exception", "2026-01-02T03:04:05.678Z", "rank 2: ValueError: " + letter * 380, 2, 1, None, 1,
        tuple(f"{n} " + letter * 290 for n in range(20)), "/x/rank-2.log",
        tuple(Secondary(rank, "exception", "Connection reset " + letter * 380) for rank in range(32)),
    )  # fmt: skip


def status(*causes: Cause) -> Status:
    nodes = [NodeStatus(n, f"g-{n}") for n in range(1000)]
    reason = f"{causes[-1].message} (restarts: 1 of 1 used)" if causes else ""
    return Status("g", "local", "failed", reason, nodes=nodes, causes=list(causes), exit_code=1)


@pytest.mark.parametrize("letter", ["x", "ж", "\U0001f600"])
@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_any_record_fits_and_can_be_read(count: int, letter: str) -> None:
    text = json.dumps(termination.cut(status(*(cause(n, letter) for n in range(count)))))
    assert len(text.encode()) <= termination.LARGEST
    found = Status.from_json(json.loads(text))
    assert (found.name, found.phase, found.exit_code) == ("g", "failed", 1)
    assert [(c.attempt, c.rank, c.kind) for c in found.causes] == [(count - 1, 2, "exception")][:count]


def test_what_fits_is_kept_whole() -> None:
    small = Cause(
        0, "signal", "2026-01-02T03:04:05.678Z", "rank 2: killed by SIGKILL", 2, 1, "SIGKILL", 137, ("step 7",)
    )
    found = Status.from_json(termination.cut(status(small, small)))
    assert found.causes == [small, small]


def test_tails_go_before_anything_else_and_their_last_lines_last() -> None:
    short = Cause(0, "exit", "2026-01-02T03:04:05.678Z", "exited", 0, 0, None, 1, ("y" * 290,) * 20, "/log")
    first, last = Status.from_json(termination.cut(status(short, short))).causes
    assert (first.message, first.tail) == ("exited", ())
    assert 5 <= len(last.tail) < 20


def test_it_is_written_in_place_where_only_the_file_may_be(tmp_path: Path) -> None:
    file = tmp_path / "termination-log"
    file.write_text("older and longer " * 100)
    inode = file.stat().st_ino
    termination.write(make_gang(termination=str(file)), 0, {"name": "g"})
    assert (file.read_text(), file.stat().st_ino) == ('{"name": "g"}', inode)


def test_a_plan_without_the_file_leaves_nothing(tmp_path: Path) -> None:
    termination.write(make_gang(state=str(tmp_path)), 0, {"name": "g"})
    assert list(tmp_path.iterdir()) == []
