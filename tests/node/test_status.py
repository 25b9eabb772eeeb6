"""The record of a run, as other versions write it."""

from __future__ import annotations

from typing import Any

import pytest

from allranks.node.cause import Cause, Secondary
from allranks.node.status import AttemptStatus, CommandStatus, NodeStatus, RankStatus, Status, Straggler

WHOLE = Status(
    "digits", "jobset", "running", nodes=[NodeStatus(0, "digits-0", ranks=[RankStatus(0, 0, 42)])],
    causes=[Cause(0, "exit", "", "rank 1", tail=("last",), secondary=(Secondary(0, "exit", "closed"),))],
    commands=[CommandStatus(0, ["true"])], attempts=[AttemptStatus(0, "")], straggler=Straggler("rank 1", ""),
)  # fmt: skip


def with_more(value: Any) -> Any:
    """The same with a field that nobody knows in every mapping of known ones."""
    if isinstance(value, list | tuple):
        return [with_more(one) for one in value]
    if isinstance(value, dict) and "used" not in value:
        return {**{name: with_more(one) for name, one in value.items()}, "of a newer version": 1}
    return value


def test_a_record_of_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    assert Status.from_json(with_more(WHOLE.to_json())) == WHOLE


def test_a_record_of_an_older_version_has_what_is_new_as_it_is_by_default() -> None:
    older = {"name": "digits", "engine": "jobset", "phase": "running"}
    assert Status.from_json(older) == Status("digits", "jobset", "running")


@pytest.mark.parametrize(
    "stranger",
    [
        {},
        {"name": "digits"},
        {"name": "x", "engine": "y", "causes": [1]},
        {"name": "x", "engine": "y", "nodes": [1]},
        [1],
        7,
    ],
)
def test_what_is_no_record_is_refused(stranger: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        Status.from_json(stranger)
