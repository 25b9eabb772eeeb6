"""What a bench found, as values: rows of one size each, and the curve that they make under one setting."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from allranks.bench.ranks.tell import MARK


@dataclass(frozen=True)
class Row:
    """One collective at one size in bytes. Times are seconds, bandwidths GB/s (1e9); ``wrong`` counts elements.

    None is what nccl-tests' output does not tell. ``graph`` says that CUDA graphs were timed.
    """

    collective: str
    size: int
    count: int
    seconds: float
    algbw: float
    busbw: float
    wrong: int | None = None
    p50: float | None = None
    p99: float | None = None
    fastest: float | None = None
    slowest: float | None = None
    graph: bool = False
    iterations: int | None = None


@dataclass(frozen=True)
class Curve:
    """All rows under one setting, called ``label``; ``facts`` say on what they were measured."""

    label: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    ended: bool = False

    @property
    def ranks(self) -> int:
        return int(self.facts.get("ranks", 0))

    @property
    def nodes(self) -> int:
        return int(self.facts.get("nodes", 1))

    @property
    def collectives(self) -> list[str]:
        return list(dict.fromkeys(row.collective for row in self.rows))

    def of(self, collective: str) -> list[Row]:
        """Its rows, by size."""
        return sorted((row for row in self.rows if row.collective == collective), key=lambda row: row.size)

    def peak(self, collective: str) -> Row | None:
        """The row with the highest busbw."""
        return max(self.of(collective), key=lambda row: row.busbw, default=None)

    def heard(self, message: Mapping[str, Any]) -> Curve:
        """The curve with one more of rank 0's messages."""
        what = message[MARK]
        if what == "begin":
            return replace(self, facts={name: value for name, value in message.items() if name != MARK})
        if what == "row":
            return replace(self, rows=(*self.rows, _row(message)))
        return replace(self, ended=self.ended or what == "end")

    def to_json(self) -> dict[str, Any]:
        return {
            "label": self.label, "facts": dict(self.facts), "complete": self.ended,
            "rows": [dict(vars(row)) for row in self.rows],
        }  # fmt: skip


def _row(message: Mapping[str, Any]) -> Row:
    known = {one.name for one in fields(Row)}
    return Row(**{name: value for name, value in message.items() if name in known})


def message(line: str) -> Mapping[str, Any] | None:
    """What rank 0 tells in a line of its log; None for a line that is somebody else's."""
    if MARK not in line or not line.startswith("{"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and MARK in value else None
