"""A few runs of the chaos suite; ``python -m tests.chaos --runs 200`` makes as many as wanted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.draw import Draw, draw
from tests.chaos.faults import BY_NAME, Drawn
from tests.chaos.suite import Suite, table, why_not

pytestmark = [pytest.mark.gang, pytest.mark.torch]

SEED = 22


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    unable = why_not()
    if unable:
        pytest.skip(unable)
    return Suite(tmp_path_factory.mktemp("chaos"))


def test_a_gang_that_meets_faults_drawn_by_seed_is_told_of_truly_and_comes_back(suite: Suite) -> None:
    report = suite.run(draw(SEED, suite.machine))
    assert not any(report["complaints"].values()), table([report])


def between_nodes(suite: Suite, *names: str, **more: Any) -> Draw:
    """Two nodes with a network between them; what ends an attempt counts it."""
    if not {"network", "clock"} <= suite.machine:
        pytest.skip("chaos between nodes needs bridge (iproute2), nsenter, cc, and the rights to use them")
    faults, attempt = [], 0
    for name in names:
        node = 0 if name in ("clock", "first pod") else 1
        faults.append(Drawn(name, attempt, node, node, 1, 2.0, False, code=124))
        attempt += BY_NAME[name].expected(faults[-1]) is not None
    return Draw(0, 2, 1, "plain", True, False, attempt, tuple(faults), **more)


def test_nodes_that_are_cut_off_or_stop_or_are_replaced_are_lost_and_come_back(suite: Suite) -> None:
    report = suite.run(between_nodes(suite, "long cut", "agent stop", "first pod"))
    assert not any(report["complaints"].values()), table([report])


@pytest.mark.parametrize("fault", ["long cut", "agent stop"])
def test_with_leases_of_an_hour_a_lost_node_is_not_found(suite: Suite, fault: str) -> None:
    """What the test above sees is the lease's work and no one else's."""
    report = suite.run(between_nodes(suite, fault, lease=3600.0, patience=4.0))
    assert report["complaints"]["result"] == [f"Stuck: not within 4 s: a cause of {fault}"], table([report])
    assert not report["causes"]


def test_short_cuts_and_a_wall_clock_that_jumps_are_nobodys_end(suite: Suite) -> None:
    """The clock of the coordinator is set on by more than the deadline of the run."""
    report = suite.run(between_nodes(suite, "clock", "short cut", "short cut"))
    assert not any(report["complaints"].values()), table([report])
