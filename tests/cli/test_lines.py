"""Ranks' lines as a person reads them."""

from __future__ import annotations

import time

import pytest

from allranks.cli.lines import Prefix, batches
from allranks.engines.engine import LogLine


def line(text: str, rank: int | None = 2) -> LogLine:
    return LogLine(0, 1, rank, text)


def test_each_line_has_its_rank_before_it_and_the_bars_stand_in_one_column() -> None:
    prefix = Prefix(12, terminal=False)
    assert prefix.text([line("a"), line("b", 11), line("c", None)]) == "rank 2  | a\nrank 11 | b\nnode 1  | c\n"


def test_what_is_not_a_terminal_gets_the_ranks_colours_and_none_of_ours() -> None:
    said = line("10%\r\x1b[31m20%\x1b[0m\x1b[2J\r")
    assert Prefix(4, terminal=False).text([said]) == "rank 2 | \x1b[31m20%\x1b[0m\n"


def test_a_terminal_gets_colour_and_the_last_state_of_a_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert Prefix(4, terminal=True).text([line("10%\r20%")]) == "\x1b[35mrank 2 | \x1b[0m20%\x1b[0m\n"


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colour_is_left_out_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    assert Prefix(4, terminal=True).text([line("a")]) == "rank 2 | a\n"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("\x1b[2J\x1b[1;1Hgone", "gone"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("\x1bcreset\x07\x00", "creset"),
        ("tab\tand é", "tab\tand é"),
        ("\x9b2Jone byte\x85", "2Jone byte"),
        ("begun \x1b[3", "begun [3"),
        ("\x1b[>4;1mkeys", "keys"),
    ],
)
def test_a_rank_cannot_move_the_cursor_or_rename_the_terminal(
    monkeypatch: pytest.MonkeyPatch, said: str, shown: str
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert Prefix(4, terminal=True).text([line(said)]) == f"rank 2 | {shown}\n"


def test_lines_come_in_handfuls_and_none_is_lost() -> None:
    lines = [line(str(n)) for n in range(5000)]
    handfuls = list(batches([*lines[:10], None, *lines[10:]]))
    assert [one for handful in handfuls for one in handful] == lines
    assert handfuls[0] == lines[:10]
    assert len(handfuls) < 20


def test_sixty_four_thousand_lines_a_second_take_less_than_a_core() -> None:
    lines = [LogLine(0, 0, n % 64, "x" * 80) for n in range(64_000)]
    prefix, begin = Prefix(64, terminal=True), time.process_time()
    for handful in batches(lines):
        prefix.text(handful)
    assert time.process_time() - begin < 1.0
