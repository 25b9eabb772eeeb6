"""What is said while nobody tells of a run, and when it has been long enough."""

from __future__ import annotations

import re

import pytest

from allranks.engines.silence import PATIENCE, Silence
from allranks.errors import Unreachable

AWAY = Unreachable("the API server is away\nmore of it")


@pytest.fixture
def now() -> list[float]:
    return [0.0]


def test_an_error_is_told_with_since_when_and_until_when_and_once(now: list[float]) -> None:
    silence = Silence("digits", 4.0, 15.0, clock=lambda: now[0])
    silence.goes_on(AWAY)
    assert silence.notes == []
    now[0] = 5.0
    silence.goes_on(AWAY)
    (said,) = silence.notes
    assert re.fullmatch(
        r"since [\d:]+ digits cannot be seen, and goes on without that; tried again until [\d:]+: "
        "the API server is away",
        said,
    )
    now[0] = 30.0
    assert silence.notes == [said]
    silence.heard()
    assert silence.notes[0] == said
    assert silence.notes[1].endswith(": digits is seen again, after 30 s")
    assert silence.trouble is None


def test_an_answer_that_only_takes_its_time_is_told_later(now: list[float]) -> None:
    silence = Silence("digits", 4.0, 15.0, clock=lambda: now[0])
    now[0] = 14.0
    assert silence.notes == []
    now[0] = 15.0
    assert silence.notes[0].endswith(": no answer")


def test_a_short_silence_is_not_worth_a_word(now: list[float]) -> None:
    silence = Silence("digits", 4.0, 15.0, clock=lambda: now[0])
    silence.goes_on(AWAY)
    now[0] = 3.0
    silence.heard()
    now[0] = 6.0
    assert silence.notes == []


def test_nobody_waits_for_ever(now: list[float]) -> None:
    silence = Silence("digits", clock=lambda: now[0])
    now[0] = PATIENCE
    assert not silence.is_too_long
    now[0] += 1
    assert silence.is_too_long
