"""A few runs of the chaos suite; ``python -m tests.chaos --runs 200`` makes as many as wanted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.draw import Draw, draw
from tests.chaos.faults import Drawn
from tests.chaos.suite import Suite, table, why_not

pytestmark = [pytest.mark.gang, pytest.mark.torch]

SEEDS = (9, 21)


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    unable = why_not()
    if unable:
        pytest.skip(unable)
    return Suite(tmp_path_factory.mktemp("chaos"))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_gang_that_meets_faults_drawn_by_seed_is_told_of_truly_and_comes_back(suite: Suite, seed: int) -> None:
    report = suite.run(draw(seed, suite.machine))
    assert not any(report["complaints"].values()), table([report])


def plain(*faults: str, **more: Any) -> Draw:
    """Two nodes with an init each; the faults strike node 1, or node 0 where they are of the first."""
    drawn = tuple(Drawn(name, attempt, 1, 1, 1, 0.0, False, 7) for attempt, name in enumerate(faults))
    return Draw(0, 2, 1, "plain", True, False, len(faults), drawn, **more)


@pytest.mark.parametrize(
    ("fault", "off"),
    [("long cut", {"lease": 3600.0}), ("agent stop", {"lease": 3600.0}), ("stop", {"hang_timeout": 3600.0})],
)
def test_with_its_detector_switched_off_a_fault_is_not_found(suite: Suite, fault: str, off: dict[str, float]) -> None:
    """What the other runs are told is the lease's and the watching thread's work and no one else's."""
    if "network" not in suite.machine:
        pytest.skip("chaos between nodes needs bridge (iproute2), nsenter and the rights to use them")
    report = suite.run(plain(fault, patience=6.0, **off))
    assert report["complaints"]["result"] == [f"Stuck: not within 6 s: a cause of {fault}"], table([report])
    assert not report["causes"]


def test_two_short_cuts_and_a_wall_clock_that_jumps_are_nobodys_end(suite: Suite) -> None:
    """The clock of the coordinator is set on by more than the deadline of the run."""
    if not {"network", "clock"} <= suite.machine:
        pytest.skip("chaos between nodes needs bridge and nsenter, the one of clocks a C compiler")
    jump = Drawn("clock", 0, 0, 0, 1, 0.0, False, 124)
    nothing = plain("short cut", "short cut")
    report = suite.run(
        Draw(0, 2, 1, "plain", True, False, 0, (jump, *(Drawn(**{**f.__dict__, "attempt": 0}) for f in nothing.faults)))
    )
    assert not any(report["complaints"].values()), table([report])
