"""Errors of any kind, told in a line."""

from __future__ import annotations

import pytest

from allranks.errors import first_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("a\nb"), "a"),
        (ValueError("\n  a\n"), "a"),
        (ValueError(), "ValueError"),
        (TimeoutError(" \n"), "TimeoutError"),
    ],
)
def test_an_error_is_told_by_its_first_line_or_its_kind(error: Exception, line: str) -> None:
    assert first_line(error) == line
