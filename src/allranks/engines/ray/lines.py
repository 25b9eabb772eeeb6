"""Lines of a service's ranks, as its door keeps them: gang, attempt, node, rank and text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from allranks.engines.engine import LogFilter, LogLine

NO_GANG = -1


def of(kept: Iterable[Sequence[Any]]) -> Iterator[LogLine]:
    """As they are shown. Lines of the agents themselves are left out."""
    for _, attempt, node, rank, text in kept:
        if attempt >= 0:
            yield LogLine(attempt, node, rank, text)


def lost(count: int, attempt: int) -> Sequence[Any]:
    """A line of the keeper's own, between those of the ranks."""
    text = f"allranks: {count:,} lines were not taken in time; they are on Ray's hosts"
    return NO_GANG, attempt, 0, None, text


def is_wanted(line: LogLine, wanted: LogFilter, newest: int) -> bool:
    """Whether it is to be shown; ``newest`` is the attempt that is, where no other is asked for."""
    if wanted.ranks and line.rank not in wanted.ranks:
        return False
    if wanted.nodes and line.node not in wanted.nodes:
        return False
    if wanted.attempt is not None:
        return line.attempt == wanted.attempt
    return line.attempt >= (newest if wanted.since is None else wanted.since)
