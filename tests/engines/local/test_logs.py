"""Ranks' lines from their files: nothing lost, in order per rank, bounded."""

from __future__ import annotations

import errno
import json
import re
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allranks.engines.engine import LogFilter, LogLine
from allranks.engines.local import logs, rundir
from allranks.engines.local.rundir import RunDir
from allranks.errors import EngineError, UsageError
from allranks.node import logs as files
from allranks.node import tail
from allranks.node.files import write_whole

ALL = LogFilter()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A living run of two nodes with two ranks each."""
    made = RunDir(rundir.runs_home() / "digits")
    made.logs.mkdir(parents=True)
    gang = {"run": "digits", "engine": "local", "version": "0", "nodes": 2, "ranks_per_node": 2, "launcher": "native"}
    made.plan.write_text(json.dumps({**gang, "argv": [], "workdir": "/", "coordinator": "", "state": str(made.path)}))
    monkeypatch.setattr(RunDir, "holder", lambda self: rundir.Holder(1, 1))
    record(made, phase="running")
    return made


def record(run: RunDir, **status: Any) -> None:
    write_whole(str(run.path / "status.json"), json.dumps({"name": "digits", "engine": "local", **status}))


def say(run: RunDir, who: str, data: bytes, attempt: int = 0) -> None:
    file = run.logs / f"attempt-{attempt}" / f"{who}.log"
    file.parent.mkdir(exist_ok=True)
    with file.open("ab") as log:
        log.write(data)


def texts(run: RunDir, wanted: LogFilter = ALL) -> list[str]:
    return [line.text for line in logs.read(run, wanted)]


def followed(run: RunDir, wanted: LogFilter = ALL, *steps: Callable[[], None]) -> list[LogLine]:
    """Follow to the end; at each moment of nothing new, take the next step."""
    queue = list(steps)
    lines = []
    for line in logs.follow(run, wanted):
        if line is not None:
            lines.append(line)
        elif queue:
            queue.pop(0)()
    return lines


def test_each_line_knows_its_attempt_node_and_rank(run: RunDir) -> None:
    say(run, "rank-3", b"hello\n", attempt=2)
    say(run, "node-1", b"launcher\n", attempt=2)
    assert list(logs.read(run, ALL)) == [LogLine(2, 1, None, "launcher"), LogLine(2, 1, 3, "hello")]


def test_filters_choose_ranks_nodes_and_attempts(run: RunDir) -> None:
    for attempt in (0, 1):
        for who in ("node-0", "node-1", "rank-0", "rank-1", "rank-2", "rank-3"):
            say(run, who, f"{attempt} {who}\n".encode(), attempt)
    assert texts(run, LogFilter(ranks=frozenset({1, 2}))) == ["1 rank-1", "1 rank-2"]
    assert texts(run, LogFilter(nodes=frozenset({1}), attempt=0)) == ["0 node-1", "0 rank-2", "0 rank-3"]
    assert texts(run, LogFilter(ranks=frozenset({0}), since=0)) == ["0 rank-0", "1 rank-0"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (LogFilter(ranks=frozenset({4})), "run digits has no rank 4; it has ranks 0 to 3"),
        (LogFilter(nodes=frozenset({-1})), "run digits has no node -1; it has nodes 0 to 1"),
        (
            LogFilter(ranks=frozenset({0}), nodes=frozenset({1})),
            "run digits has no such rank on the nodes asked for: rank 0 is on node 0",
        ),
    ],
)
def test_a_rank_or_node_that_is_not_there_is_an_error(run: RunDir, wanted: LogFilter, message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}$"):
        texts(run, wanted)


def test_an_attempt_that_is_not_there_is_an_error_with_those_that_are(run: RunDir) -> None:
    say(run, "rank-0", b"", attempt=0)
    say(run, "rank-0", b"", attempt=3)
    with pytest.raises(EngineError, match=r"^run digits has no logs of attempt 2; attempts with logs: 0, 3$"):
        texts(run, LogFilter(attempt=2))


def test_a_partial_last_line_is_kept(run: RunDir) -> None:
    say(run, "rank-0", b"one\ntwo")
    assert texts(run) == ["one", "two"]


def test_a_partial_line_is_held_back_until_it_is_whole_or_its_attempt_is_over(run: RunDir) -> None:
    say(run, "rank-0", b"begun ")
    lines = followed(
        run,
        ALL,
        lambda: say(run, "rank-0", b"and done\nlast words"),
        lambda: record(run, phase="failed"),
    )
    assert [line.text for line in lines] == ["begun and done", "last words"]


def test_following_goes_on_through_restarts_and_ends_with_the_run(run: RunDir) -> None:
    say(run, "rank-0", b"first\n")
    lines = followed(
        run,
        ALL,
        lambda: record(run, phase="restarting", attempt=0),
        lambda: say(run, "rank-0", b"second\n", 1),
        lambda: record(run, phase="running", attempt=1),
        lambda: say(run, "rank-0", b"third\n", 1),
        lambda: record(run, phase="succeeded", attempt=1),
    )
    assert [(line.attempt, line.text) for line in lines] == [(0, "first"), (1, "second"), (1, "third")]


def test_following_one_attempt_ends_with_that_attempt(run: RunDir) -> None:
    say(run, "rank-0", b"first\n")
    say(run, "rank-0", b"second\n", attempt=1)
    record(run, phase="running", attempt=1)
    assert [line.text for line in followed(run, LogFilter(attempt=0))] == ["first"]


def test_following_a_run_that_is_over_before_any_rank_started_ends(run: RunDir) -> None:
    record(run, phase="failed")
    assert followed(run, LogFilter(since=0)) == []


def test_a_command_that_is_not_in_the_record_yet_is_awaited_and_nothing_before_it_is_shown(run: RunDir) -> None:
    say(run, "rank-0", b"of the command before\n", attempt=0)
    before = {"number": 0, "argv": ["true"], "attempts": 1, "phase": "succeeded"}
    now = {**before, "number": 1, "attempt": 1, "phase": "running"}
    record(run, phase="idle", commands=[before])
    lines = followed(
        run,
        LogFilter(command=1, since=1),
        lambda: record(run, phase="running", attempt=1, commands=[before, now]),
        lambda: say(run, "rank-0", b"ours\n", attempt=1),
        lambda: record(run, phase="idle", attempt=1, commands=[before, {**now, "phase": "succeeded"}]),
    )
    assert [line.text for line in lines] == ["ours"]


def test_a_command_that_only_newer_ones_are_told_of_is_over_without_an_exit_code(run: RunDir) -> None:
    record(run, phase="running", attempt=60, commands=[{"number": 60, "argv": ["true"], "attempt": 60}])
    told = run.status().of_command(3)
    assert (told.phase, told.exit_code, told.reason) == ("failed", None, "the record holds no command 3 any more")
    assert followed(run, LogFilter(command=3, since=3)) == []


def test_attempts_that_came_and_went_between_two_looks_are_all_shown(run: RunDir) -> None:
    for attempt in range(4):
        say(run, "rank-1", f"{attempt}\n".encode(), attempt)
    record(run, phase="failed", attempt=3)
    assert [line.text for line in followed(run, LogFilter(since=0))] == ["0", "1", "2", "3"]
    assert [line.text for line in followed(run)] == ["3"]


def test_bytes_that_are_no_text_and_line_ends_of_other_systems_do_no_harm(run: RunDir) -> None:
    say(run, "rank-0", b"\xff\x00\xfe\nwindows\r\n10%\r20%\r30%\n\n")
    assert texts(run) == ["\ufffd\x00\ufffd", "windows", "10%\r20%\r30%", ""]


@pytest.mark.parametrize("letter", ["x", "é", "€", "𝄞"])
def test_a_line_that_is_too_long_is_cut_with_a_note_and_no_character_is_torn(run: RunDir, letter: str) -> None:
    long = letter * (3 * tail.CHUNK)
    say(run, "rank-0", b"before\n" + long.encode() + b"\nshort\n")
    before, piece, note, short = texts(run)
    assert (before, short) == ("before", "short")
    assert long.startswith(piece)
    assert tail.LONGEST - 8 <= len(piece.encode()) <= 2 * tail.LONGEST
    left_out = len(long.encode()) - len(piece.encode())
    assert note == f"allranks: {left_out:,} more bytes of this line are in {run.logs}/attempt-0/rank-0.log"


def test_a_line_of_a_hundred_megabytes_takes_little_memory_and_time(run: RunDir) -> None:
    for _ in range(100):
        say(run, "rank-0", b"x" * 2**20)
    tracemalloc.start()
    piece, note = texts(run)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 2**20
    assert len(piece) < 2 * tail.LONGEST
    assert "more bytes of this line are in" in note


# Progress bars


def test_a_bar_that_draws_itself_again_and_again_is_a_line_now_and_then(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(first: int) -> None:
        say(run, "rank-0", b"".join(b"\r%d of 20000" % n for n in range(first, first + 10_000)))

    def wait_for_the_next() -> None:
        monkeypatch.setattr(tail, "BAR", 0.0)

    steps = (lambda: draw(0), wait_for_the_next, lambda: draw(10_000), lambda: record(run, phase="succeeded"))
    shown = [line.text.rpartition("\r")[2] for line in followed(run, ALL, *steps)]
    assert shown[0] == "9999 of 20000"
    assert shown[-1] == "19999 of 20000"
    assert len(shown) < 10


def test_bars_that_go_back_up_over_each_other_are_one_line(run: RunDir) -> None:
    frames = b"".join(b"\r0: %d\n\r1: %d\x1b[A" % (n, n) for n in range(1000))
    say(run, "rank-0", b"begin\n" + frames + b"\n\nend\n")
    shown = texts(run)
    assert shown[0] == "begin"
    assert shown[-1] == "end"
    assert any("999" in text for text in shown)
    assert len(shown) < 6


# What was cut away


def lines_of(first: int, last: int) -> bytes:
    return b"".join(b"%07d %s\n" % (n, b"x" * 91) for n in range(first, last))


def test_a_log_that_was_cut_begins_with_a_note(run: RunDir) -> None:
    limit_to(run, 2**20)
    say(run, "rank-0", lines_of(0, 20_000))
    files.cut(str(run.logs / "attempt-0" / "rank-0.log"), 2**20)
    note, *lines = texts(run)
    assert re.fullmatch(
        r"allranks: 1,2\d\d,\d00 bytes of this log were cut away: it had grown beyond 1,048,576 .*", note
    )
    assert lines == lines_of(20_000 - len(lines), 20_000).decode().splitlines()
    assert len(lines) * 100 > 2**19


@pytest.mark.parametrize("holes", [True, False], ids=["with holes", "by emptying"])
def test_who_follows_while_a_log_is_cut_misses_and_repeats_nothing(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, holes: bool
) -> None:
    limit_to(run, 2**20)
    if not holes:
        monkeypatch.setattr(files, "_punch", no_holes)
    path = run.logs / "attempt-0" / "rank-0.log"

    def grow_and_cut(turn: int) -> Callable[[], None]:
        def step() -> None:
            say(run, "rank-0", lines_of(turn * 5000, turn * 5000 + 5000))
            if turn == 3:  # nobody had a look since: half of it is gone before it was read
                say(run, "rank-0", lines_of(20_000, 35_000))
                files.cut(str(path), 2**20)

        return step

    def cut() -> None:
        files.cut(str(path), 2**20)

    steps = [grow_and_cut(0), grow_and_cut(1), grow_and_cut(2), cut, grow_and_cut(3)]
    shown = [line.text for line in followed(run, ALL, *steps, lambda: record(run, phase="succeeded"))]
    numbers = [int(text.split()[0]) for text in shown if not text.startswith("allranks: ")]
    assert numbers[:15_000] == list(range(15_000))
    assert numbers == sorted(set(numbers))
    if holes:
        assert numbers[-1] == 34_999
        assert len(shown) - len(numbers) == 1
    assert path.stat().st_blocks * 512 <= 1.1 * 2**20


def no_holes(handle: int, offset: int, length: int) -> None:
    raise OSError(errno.EOPNOTSUPP, "no holes here")


def limit_to(run: RunDir, limit: int) -> None:
    run.plan.write_text(json.dumps({**json.loads(run.plan.read_text()), "log_limit": limit}))


# Since


def test_since_a_moment_shows_what_came_later_in_all_attempts(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    for attempt, who, data, at in (
        (0, "rank-0", b"a\nb\nc", 100.0),
        (0, "rank-0", b"c\nd\n", 110.0),
        (0, "rank-1", b"silent since\n", 100.0),
        (1, "rank-0", b"e\n", 120.0),
    ):
        say(run, who, data, attempt)
        path = run.logs / f"attempt-{attempt}" / f"{who}.log"
        monkeypatch.setattr(time, "time", lambda at=at: at)
        files.mark(str(path), path.stat().st_size)
    assert texts(run, LogFilter(after=0.0)) == ["a", "b", "cc", "d", "silent since", "e"]
    assert texts(run, LogFilter(after=105.0)) == ["cc", "d", "e"]
    assert texts(run, LogFilter(after=115.0)) == ["e"]
    assert texts(run, LogFilter(after=105.0, attempt=0)) == ["cc", "d"]
    assert texts(run, LogFilter(after=125.0)) == []
    say(run, "rank-0", b"not marked yet\n", 1)
    record(run, phase="succeeded", attempt=1)
    assert [line.text for line in followed(run, LogFilter(after=125.0))] == ["not marked yet"]


def test_nothing_is_lost_or_out_of_order_while_four_ranks_write(run: RunDir) -> None:
    def write(rank: int) -> None:
        for burst in range(50):
            say(run, f"rank-{rank}", b"".join(f"{rank} {burst * 100 + n} {'x' * 70}\n".encode() for n in range(100)))
            time.sleep(0.001)

    def write_all() -> None:
        writers = [threading.Thread(target=write, args=(rank,)) for rank in range(4)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        record(run, phase="succeeded")

    thread = threading.Thread(target=write_all)
    thread.start()
    seen: dict[int | None, list[int]] = {}
    for line in followed(run):
        seen.setdefault(line.rank, []).append(int(line.text.split()[1]))
    thread.join()
    assert seen == {rank: list(range(5000)) for rank in range(4)}


def test_logs_of_a_run_whose_name_was_used_again_are_still_its_own(run: RunDir, tmp_path: Path) -> None:
    say(run, "rank-0", b"the old one\n")
    record(run, phase="succeeded")
    rundir.move_aside(run)
    assert texts(RunDir(run.path.with_name("digits.1"))) == ["the old one"]
