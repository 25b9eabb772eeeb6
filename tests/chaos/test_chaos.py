"""A few seeds of the chaos suite; ``python -m tests.chaos --runs 200`` makes as many as wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.draw import draw
from tests.chaos.suite import Suite, table, why_not

pytestmark = [pytest.mark.gang, pytest.mark.torch]

SEEDS = (5, 9, 22)


def test_gangs_that_meet_faults_drawn_by_seed_are_told_of_truly_and_come_back(tmp_path: Path) -> None:
    unable = why_not()
    if unable:
        pytest.skip(unable)
    suite = Suite(tmp_path)
    reports = [suite.run(draw(seed, suite.machine)) for seed in SEEDS]
    assert not any(any(report["complaints"].values()) for report in reports), table(reports)
