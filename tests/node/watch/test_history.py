"""What is kept of the ranks' memory: bounded, taken over from an agent that died, and given up when it cannot be."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from allranks.node.watch.history import MOST_LINES, History, path_of

RANKS = [{"rank": 0, "rss": 5_000_000, "completed": 7, "entered": 8}]


class Keeper:
    """A history whose clock moves by a second with each report."""

    def __init__(self, folder: Path, now: float = 1000.0) -> None:
        self.path, self.now, self.notes = Path(path_of(str(folder), 0)), now, list[str]()
        self.history = History(str(self.path), self.notes.append, lambda: self.now)

    def runs(self, seconds: int, step: float = 1.0) -> None:
        for _ in range(int(seconds / step)):
            self.history.add(3, RANKS)
            self.now += step

    def moments(self) -> list[float]:
        return [json.loads(line)[0] for line in self.path.read_text().splitlines()]


def test_a_line_holds_time_attempt_rank_memory_and_collectives(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path)
    keeper.runs(1)
    assert keeper.path.read_text() == "[1000.0,3,[[0,5000000,7]]]\n"


def test_samples_that_come_more_often_are_left_out(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path)
    keeper.runs(10, step=0.125)
    assert len(keeper.moments()) == 10


def test_a_day_takes_no_more_lines_than_ten_minutes(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path)
    keeper.runs(24 * 3600)
    moments = keeper.moments()
    assert MOST_LINES / 2 <= len(moments) <= MOST_LINES
    assert moments[0] == 1000
    assert keeper.now - moments[-1] <= 256
    assert max(b - a for a, b in itertools.pairwise(moments)) <= 256


def test_the_next_agent_goes_on_with_the_same_spacing(tmp_path: Path) -> None:
    first = Keeper(tmp_path)
    first.runs(5000)
    before = len(first.moments())
    Keeper(tmp_path, first.now).runs(100)
    assert 0 < len(first.moments()) - before < 30


def test_a_clock_that_is_set_back_stops_nothing(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path)
    keeper.runs(5)
    keeper.now -= 3600
    keeper.runs(5)
    assert len(keeper.moments()) == 10


def test_what_cannot_be_kept_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("in the way")
    keeper = Keeper(tmp_path)
    keeper.runs(5)
    (note,) = keeper.notes
    assert "the ranks' memory is not kept any longer" in note
