"""Values as the YAML that a person would have written: in their own order, with comments where something surprises."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any

from allranks.spec.scalar import UNPRINTABLE, scalar
from allranks.spec.service import Spec

# Text that stands without quotes: as a value of its own, and within [a, list].
BARE = re.compile(r"(--?[A-Za-z]|[A-Za-z0-9_/$])[ -~\w]*|\.[\w/][ -~\w]*")
BARE_ITEM = re.compile(r"-{0,2}[A-Za-z0-9_/][\w./=+@%:-]*|\./[\w./=+@%:-]*", re.ASCII)
LONGEST_FLOW = 100
LONGEST_LINE = 110
LONGEST_WORD = 4000
"""Characters of a text without spaces that a person may want to see."""


def dump(spec: Spec) -> str:
    """Write a spec so that ``parse`` gives the same one back, without what is the default."""
    fields = spec.model_dump(mode="json", exclude_defaults=True)
    return "\n".join(_mapping({"kind": spec.kind} | fields, "")) + "\n"


def documents(values: Iterable[dict[str, Any]]) -> str:
    """Write plain data, each document whole. A mapping's attribute ``why`` has comments, by its keys."""
    return "---\n".join("\n".join(_mapping(value, "")) + "\n" for value in values)


def shortened(value: Any) -> Any:
    """Cut words that are too long for anybody to read; a comment says so."""
    if isinstance(value, list):
        return [shortened(item) for item in value]
    if not isinstance(value, dict):
        return value
    whole: Any = copy(value)
    for key, item in value.items():
        if isinstance(item, str) and len(item) > LONGEST_WORD and " " not in item:
            whole[key] = f"{item[:12]}..."
            why = getattr(value, "why", {})
            if key in why:
                whole.why = {**why, key: f"{why[key]}; all {len(item)} characters of it with -o yaml"}
        else:
            whole[key] = shortened(item)
    return whole


def _mapping(values: dict[str, Any], indent: str) -> Iterator[str]:
    why = getattr(values, "why", {})
    for key, value in values.items():
        lines = _entry(f"{indent}{_text(key)}:", value, indent)
        yield from _commented(lines, why[key], indent) if why.get(key) else lines


def _commented(lines: Iterator[str], why: str, indent: str) -> Iterator[str]:
    """Behind the first line where there is room, else above it."""
    first = next(lines)
    if len(first) + len(why) + 4 <= LONGEST_LINE:
        yield f"{first}  # {why}"
    else:
        yield f"{indent}# {why}"
        yield first
    yield from lines


def _sequence(values: list[Any], indent: str) -> Iterator[str]:
    for value in values:
        if isinstance(value, dict | list) and value:
            # The dash takes the place of the first line's indentation.
            first, *rest = _block(value, f"{indent}  ")
            while first.lstrip().startswith("# "):  # a comment above the first field is one above the dash
                yield f"{indent}{first.lstrip()}"
                first, *rest = rest
            yield f"{indent}- {first[len(indent) + 2 :]}"
            yield from rest
        else:
            yield from _entry(f"{indent}-", value, indent)


def _block(value: dict[str, Any] | list[Any], indent: str) -> Iterator[str]:
    return _mapping(value, indent) if isinstance(value, dict) else _sequence(value, indent)


def _entry(start: str, value: Any, indent: str) -> Iterator[str]:
    """Put the value behind its key or dash where it fits one line, else indented below."""
    line = _flow(value) if isinstance(value, dict | list) else _scalar(value)
    if line:
        yield f"{start} {line}"
    elif isinstance(value, str):
        yield f"{start} {'|' if value.endswith(chr(10)) else '|-'}"
        for part in value.removesuffix("\n").split("\n"):
            yield f"{indent}  {part}" if part else ""
    else:
        yield start
        yield from _block(value, f"{indent}  ")


def _flow(value: dict[str, Any] | list[Any]) -> str:
    """Write ``[a, short, list]``, or nothing where a list or mapping needs lines of its own."""
    if not value:
        return "{}" if isinstance(value, dict) else "[]"
    if isinstance(value, dict) or any(isinstance(item, dict | list) for item in value):
        return ""
    line = f"[{', '.join(_text(item, BARE_ITEM) if isinstance(item, str) else _scalar(item) for item in value)}]"
    return line if len(line) <= LONGEST_FLOW else ""


def _scalar(value: object) -> str:
    """One line for a scalar, or nothing for text that reads best as a block of lines."""
    if not isinstance(value, str):
        return json.dumps(value)
    return "" if _is_block(value) else _text(value)


def _is_block(text: str) -> bool:
    lines = text.removesuffix("\n").split("\n")
    clean = not UNPRINTABLE.search(text) and "\r" not in text
    return len(lines) > 1 and clean and lines[0][:1] not in ("", " ", "\t") and bool(lines[-1].strip())


def _text(text: str, bare: re.Pattern[str] = BARE) -> str:
    clean = not UNPRINTABLE.search(text) and not re.search("[\t\r\n]", text)
    if clean and bare.fullmatch(text) and isinstance(scalar(text), str) and not re.search(r":( |$)| #| $", text):
        return text
    if clean and "'" not in text:
        return f"'{text}'"
    quoted = json.dumps(text, ensure_ascii=False)
    return UNPRINTABLE.sub(_escape, quoted)


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
