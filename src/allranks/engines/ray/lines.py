"""Lines of a service's ranks, as its door keeps them: gang, attempt, node, rank and text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from allranks.engines.engine import LogFilter, LogLine


def of(kept: Iterable[Sequence[Any]]) -> Iterator[LogLine]:
    """As they are shown. Lines of the agents themselves are left out."""
    for gang, attempt, node, rank, text in kept:
        if attempt >= 0 or gang < 0:
            yield LogLine(max(attempt, 0), node, rank, text)


def is_wanted(line: LogLine, wanted: LogFilter, newest: int) -> bool:
    """Whether it is to be shown; ``newest`` is the attempt that is, where no other is asked for."""
    if wanted.ranks and line.rank not in wanted.ranks:
        return False
    if wanted.nodes and line.node not in wanted.nodes:
        return False
    if wanted.attempt is not None:
        return line.attempt == wanted.attempt
    return line.attempt >= (newest if wanted.since is None and wanted.after is None else wanted.since or 0)


def wanted_of(lines: Iterable[LogLine], wanted: LogFilter) -> Iterator[LogLine]:
    """Of all that there are those that are to be shown."""
    found = list(lines)
    newest = max((line.attempt for line in found), default=0)
    yield from (line for line in found if is_wanted(line, wanted, newest))
