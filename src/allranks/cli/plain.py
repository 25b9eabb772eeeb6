"""What ranks print, made harmless where it is shown in the midst of our own text."""

from __future__ import annotations

import re
from unicodedata import combining, east_asian_width

# Control sequences, strings to the terminal (titles, links), and single escapes.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?")
# What is not text, and what turns the direction of the text around it.
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def plain(text: str, most: int = 500) -> str:
    """The text without colours and control characters, cut where it is longer than ``most`` characters.

    Of a progress bar its last state is left; what cannot be shown is written out, as in ``\\x00``.
    """
    text = _ESCAPES.sub("", text[: 4 * most])
    shown = _UNSEEN.sub(_written_out, text)
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def one_line(text: str, most: int = 500) -> str:
    """The same in a single line."""
    return plain(text.rstrip("\r\n").rpartition("\r")[2].replace("\n", " ").replace("\t", " "), most)


def _written_out(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def fit(text: str, width: int) -> str:
    """As much of a line as a terminal shows in ``width`` columns."""
    if text.isascii():
        return text if len(text) <= width else text[: max(width - 3, 0)] + "..."
    used = 0
    for number, character in enumerate(text):
        used += columns(character)
        if used > width:
            return text[:number]
    return text


def columns(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)
