"""The ranks' log files: bounded while they are written, and found by time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from allranks.node import logs

LIMIT = 2**20


def test_a_log_that_is_cut_while_it_is_written_loses_nothing_but_its_oldest_part(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    lines, written = 60_000, threading.Event()

    def write() -> None:
        with path.open("ab", buffering=0) as log:
            for n in range(lines):
                log.write(b"%07d %s\n" % (n, b"x" * 91))
        written.set()

    path.touch()
    threading.Thread(target=write).start()
    while not written.is_set():
        logs.cut(str(path), LIMIT)
    logs.cut(str(path), LIMIT)
    data = path.read_bytes()
    head, _, _ = data.partition(b"\0")
    with path.open("rb") as file:
        begin = logs.beginning(file.fileno())
    kept = [int(line.split()[0]) for line in data[begin:].splitlines()]
    assert head.decode() == (
        f"allranks: the first {begin} bytes of this log were cut away: it had grown beyond {LIMIT} bytes (logs.limit)\n"
    )
    assert kept == list(range(lines - len(kept), lines))
    assert LIMIT / 2 < path.stat().st_blocks * 512 <= LIMIT * 1.05


def test_marks_stay_few_and_the_newest_are_the_finest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_MARKS", 200)
    monkeypatch.setattr(logs, "FINENESS", 1 / 20)
    path = str(tmp_path / "rank-0.log")
    for second in range(1000):
        monkeypatch.setattr("time.time", lambda second=second: float(second))
        logs.mark(path, second * 10)
    assert Path(logs.marks_of(path)).stat().st_size <= 201 * 16
    assert logs.size_at(path, -1.0) == 0
    assert logs.size_at(path, 2000.0) == 9990
    late = [moment - logs.size_at(path, moment + 0.5) / 10 for moment in range(1000)]
    assert late[990:] == [0] * 10
    assert all(0 <= by <= 1 + (1000 - moment) / 20 for moment, by in enumerate(late))


def test_half_a_mark_that_a_full_disk_left_does_no_harm(tmp_path: Path) -> None:
    path = str(tmp_path / "rank-0.log")
    logs.mark(path, 10)
    with open(logs.marks_of(path), "ab") as file:
        file.write(b"torn")
    assert logs.size_at(path, 1e12) == 10
    logs.mark(path, 20)
    assert logs.size_at(path, 1e12) == 20
