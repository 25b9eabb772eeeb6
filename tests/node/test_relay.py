"""A node's lines on the way to its container's output: whole, in order, told apart again, and never in a rank's way."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from allranks.node import relay as relays
from allranks.node.gang import Gang
from allranks.node.relay import Relay, _write_all, parse


@pytest.fixture
def gang(tmp_path: Path) -> Gang:
    (tmp_path / "logs").mkdir()
    return Gang("digits", "jobset", "0", 2, 2, "native", ("true",), "/", "node-0", str(tmp_path))


def say(gang: Gang, attempt: int, rank: int, text: str) -> None:
    path = Path(gang.log_of(attempt, rank))
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


class Reader(threading.Thread):
    """Reads the other end of a relay's output to its end."""

    def __init__(self) -> None:
        super().__init__()
        self._reading, self.writing = os.pipe()
        self.text = ""
        self.start()

    def run(self) -> None:
        with open(self._reading, encoding="utf-8") as file:
            self.text = file.read()

    def lines(self) -> list[str]:
        os.close(self.writing)
        self.join(20)
        return self.text.splitlines()


def test_every_line_is_told_apart_again_with_its_attempt_and_rank(gang: Gang) -> None:
    reader = Reader()
    relay = Relay(gang, 1, reader.writing)
    relay.start()
    for number in range(1000):
        say(gang, 0, 2, f"loss {number}\n")
        say(gang, 0, 3, f"1 rank 0 | a rank may print what looks like ours {number}\n")
    say(gang, 0, 2, "no line end")
    say(gang, 1, 3, "again\n")
    Path(gang.launcher_log_of(1, 1)).write_text("mpirun: hello\n")
    assert relay.finish(20)
    found = [parse(line) for line in reader.lines()]
    of_rank_2 = [text for attempt, node, rank, text in filter(None, found) if (attempt, rank) == (0, 2)]
    of_rank_3 = [text for attempt, node, rank, text in filter(None, found) if (attempt, rank) == (0, 3)]
    assert of_rank_2 == [*(f"loss {number}" for number in range(1000)), "no line end"]
    assert of_rank_3 == [f"1 rank 0 | a rank may print what looks like ours {number}" for number in range(1000)]
    assert (1, None, 3, "again") in found
    assert (1, 1, None, "mpirun: hello") in found


def test_the_agents_own_lines_are_no_ranks_lines(gang: Gang) -> None:
    reader = Reader()
    relay = Relay(gang, 1, reader.writing)
    relay.start()
    Path(gang.state, "logs", "agent-1.log").write_text("10:00:00 dialling node-0:29490: refused\n")
    assert relay.finish(20)
    (line,) = reader.lines()
    assert line == "allranks: 10:00:00 dialling node-0:29490: refused"
    assert parse(line) is None


def test_attempts_of_the_container_before_are_not_told_again(gang: Gang) -> None:
    say(gang, 0, 2, "of the container before\n")
    reader = Reader()
    relay = Relay(gang, 1, reader.writing)
    relay.start()
    say(gang, 1, 2, "of this one\n")
    assert relay.finish(20)
    assert reader.lines() == ["1 rank 2 | of this one"]


def test_an_output_that_is_far_behind_has_the_last_lines_and_says_what_it_has_not(
    gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*asked: Any) -> None:
        time.sleep(0.002)
        _write_all(*asked)

    monkeypatch.setattr(relays, "_write_all", slow)  # 2 MB a second
    reader = Reader()
    relay = Relay(gang, 1, reader.writing)
    text_of_rank_2 = "".join(f"line {number:9}\n" for number in range(1_000_000)) + "ValueError: no\n"
    say(gang, 0, 2, text_of_rank_2)
    relay.start()
    assert relay.finish(2)
    told = [text for _, _, rank, text in filter(None, map(parse, reader.lines())) if rank == 2]
    assert told[-1] == "ValueError: no"
    (note,) = [number for number, text in enumerate(told) if text.startswith("allranks: ")]
    left_out = int(re.sub(" bytes of this log are left out here: .*|allranks: ", "", told[note]).replace(",", ""))
    shown = sum(len(text) + 1 for number, text in enumerate(told) if number != note)
    assert shown + left_out - len(text_of_rank_2) in (0, 1)  # the line before the note may be a part of one


def test_an_output_that_nobody_reads_holds_up_neither_the_ranks_nor_the_end(gang: Gang) -> None:
    reading, writing = os.pipe()
    try:
        relay = Relay(gang, 1, writing)
        relay.start()
        began = time.monotonic()
        say(gang, 0, 2, "x" * 100 + "\n")
        for _ in range(200):
            say(gang, 0, 2, ("y" * 1000 + "\n") * 10)  # 2 MB; a pipe holds 64 KiB
        assert not relay.finish(0.5)
        assert time.monotonic() - began < 15
    finally:
        os.close(reading)  # now its write fails, and it ends
        relay.join(20)
        os.close(writing)
    assert not relay.is_alive()
