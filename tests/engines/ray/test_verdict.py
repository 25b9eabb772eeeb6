"""What a coordinator makes of what its nodes say."""

from __future__ import annotations

from typing import Any

import pytest

from allranks.engines.ray.verdict import Broken, GaveUp, judge


def beat(code: int | None = None, phase: str = "running", reason: str = "") -> dict[str, Any]:
    return {"code": code, "status": {"phase": phase, "reason": reason}}


def test_a_gang_that_runs_or_is_being_ended_by_its_agents_is_left_alone() -> None:
    judge([beat(), beat()])
    judge([{"code": None, "status": None}, beat()])
    judge([beat(phase="failed"), beat(code=1)])


def test_a_gang_that_gave_up_says_why_and_no_other_is_made() -> None:
    with pytest.raises(GaveUp, match="rank 1: its model is torn"):
        judge([beat(1, "failed", "rank 1: its model is torn"), beat(1)])


def test_one_that_ended_otherwise_unasked_is_replaced() -> None:
    with pytest.raises(Broken, match="node 1: its agent ended with 137"):
        judge([beat(), beat(code=137)])
