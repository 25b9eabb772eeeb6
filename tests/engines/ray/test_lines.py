"""Lines of a service on Ray, on its hosts and on the machine that follows it: all of them, and not without bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from allranks.engines.engine import LogFilter
from allranks.engines.ray import control, lines, telling
from allranks.engines.ray.printed import Printed
from allranks.engines.ray.rundir import RunDir
from allranks.errors import UsageError

MUCH = 2**30


def told(number: int, attempt: int = 0) -> list[object]:
    return [0, attempt, 0, 0, f"line {number} " + "." * 100]


def numbers(run: RunDir, wanted: LogFilter | None = None) -> list[int]:
    return [int(line.text.split()[1]) for line in control._read(run, wanted or LogFilter())]


def test_all_lines_of_the_newest_attempt_are_shown_however_many_there_are(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.keep([told(number) for number in range(5)], MUCH)
    run.keep([told(number, attempt=1) for number in range(20_000)], MUCH)  # more than is read at a time
    assert numbers(run) == list(range(20_000))
    assert numbers(run, LogFilter(attempt=0)) == list(range(5))
    assert len(numbers(run, LogFilter(since=0))) == 20_005


def test_what_was_printed_when_is_not_known_and_that_is_told() -> None:
    with pytest.raises(UsageError, match="--since: lines that come by Ray have no times"):
        control.ENGINE.logs("chat", LogFilter(after=1.0), follow=False)


def test_lines_of_the_agents_are_left_out_and_that_some_were_lost_is_told(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.keep([told(1), [0, -1, 0, None, "an agent's"], lines.lost(1200, attempt=0)], MUCH)
    first, second = control._read(run, LogFilter())
    assert (first.rank, second.rank) == (0, None)
    assert second.text == "allranks: 1,200 lines were not taken in time; they are on Ray's hosts"


def test_the_oldest_lines_go_and_who_follows_keeps_its_place(tmp_path: Path) -> None:
    run, limit = RunDir(tmp_path), 100_000
    run.keep([told(number) for number in range(10)], limit)
    ((_, at),) = run.kept()
    for begin in range(10, 5000, 10):
        run.keep([told(number) for number in range(begin, begin + 10)], limit)
    found = numbers(run)
    assert found == list(range(5000 - len(found), 5000))
    assert limit / 2 < len(found) * len(str(told(1000))) < limit
    assert sum(len(kept) for kept, _ in run.kept(at)) == len(found)  # it was in the midst of what went
    (tmp_path / "lines.jsonl").write_text("allranks: 9 bytes before this line were cut away: no holes here\n")
    run.keep([told(7)], limit)
    assert [kept for kept, _ in run.kept(at)] == [[told(7)]]


def test_what_a_node_prints_is_read_on_by_whole_lines_and_kept_within_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.touch()
    printed = Printed(path, limit=10_000)
    with path.open("ab", buffering=0) as output:
        output.write("a\nü\nhalf".encode())
        assert list(printed.lines(9)) == ["a", "ü"]
        output.write(b" and half\nb\n")
        assert list(printed.lines(1)) == ["half and half"]
        for number in range(2000):  # of which nothing is read meanwhile
            output.write(b"%d\n" % number + b"." * 20 + b"\n")
        found = [line for line in printed.lines(9999) if "." not in line]
    assert found == [str(number) for number in range(2000 - len(found), 2000)]
    assert 100 < len(found) < 500


def test_who_hears_a_door_elsewhere_gets_each_line_once_and_the_newest_where_it_comes_too_late() -> None:
    nobody: Any = None
    heard = telling.Telling(nobody, "chat", "uid")  # no head: it asks nobody
    try:
        heard._take({"lines": [told(number) for number in range(3)], "next": 3})
        found, at = heard.since(0)
        assert ([line[4].split()[1] for line in found], at) == (["0", "1", "2"], 3)
        assert heard.since(at) == ([], 3)
        heard._take({"lines": [told(number) for number in range(3, 3 + telling.MOST_LINES)], "next": 9})
        found, at = heard.since(at)
        assert (len(found), at) == (telling.MOST_LINES, 3 + telling.MOST_LINES)
        heard._take({"lines": [told(7)], "next": 10})
        assert [line[4].split()[1] for line in heard.since(at)[0]] == ["7"]
        assert len(heard.since(0)[0]) == telling.MOST_LINES
    finally:
        heard.close()
        heard.join(30)
