"""What a bare word of YAML means, and which characters a YAML text may hold. Needs no YAML library."""

from __future__ import annotations

import re
from typing import Any

WORDS: dict[str, bool | None] = {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
WORDS |= {"": None, "~": None, "null": None, "Null": None, "NULL": None}
# Python refuses to convert longer numbers; they stay text, which no number field takes.
INTEGER = re.compile(r"[-+]?[0-9]{1,4000}", re.ASCII)
OCTAL_OR_HEX = re.compile(r"0o[0-7]{1,18}|0x[0-9a-fA-F]{1,15}", re.ASCII)
FLOAT = re.compile(r"[-+]?(\.[0-9]{1,40}|[0-9]{1,40}(\.[0-9]{0,40})?)([eE][-+]?[0-9]{1,3})?", re.ASCII)
NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", re.ASCII)
# What YAML's c-printable leaves out, and the three line ends that editors count differently.
UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


def scalar(text: str) -> Any:
    """Resolve a bare scalar by YAML 1.2's core schema."""
    if text in WORDS:
        return WORDS[text]
    if INTEGER.fullmatch(text):
        return int(text)
    if OCTAL_OR_HEX.fullmatch(text):
        return int(text[2:], 8 if text[1] == "o" else 16)
    if FLOAT.fullmatch(text):
        return float(text)
    if NOT_FINITE.fullmatch(text):
        return float(text.replace(".", "", 1))
    return text


def shown(*parts: object) -> str:
    """Quote a piece of the user's text, cut to what fits a line of a message."""
    text = "".join(map(str, parts))
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
