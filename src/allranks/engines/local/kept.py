"""What a run's directory holds for a report, bounded whatever its ranks have written."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from allranks.engines.engine import Evidence, Kept, Sample
from allranks.engines.local.rundir import RunDir
from allranks.errors import EngineError
from allranks.node.gang import Gang
from allranks.node.lastwords import read_tail
from allranks.node.watch import history

MOST_TABLE, MOST_STACK = 256 * 1024, 64 * 1024
MOST_RANKS = 1024
MOST_ATTEMPTS = 50
MOST_SAMPLES = 100_000
MOST_HISTORY = 16 * 1024 * 1024
MOST_WORDS = 64


def read(run: RunDir) -> Kept:
    """All of it. A plan that cannot be read, or files that are not there, are no reason to report nothing."""
    try:
        gang = run.gang()
    except EngineError:
        return Kept(folder=str(run.path))
    ranks = range(min(gang.world_size, MOST_RANKS))
    return Kept(gang.argv[:MOST_WORDS], str(run.path), _evidence(run), tails(run, ranks), _history(run, gang))


def tails(run: RunDir, ranks: Collection[int]) -> dict[int, tuple[str, ...]]:
    """The last lines of these ranks in the newest attempt that has logs."""
    newest = run.attempts()[-1:]
    return {
        rank: lines
        for attempt in newest
        for rank in ranks
        if (lines := read_tail(f"{run.logs}/attempt-{attempt}/rank-{rank}.log"))
    }


def _evidence(run: RunDir) -> Mapping[int, Evidence]:
    folders = [(int(found[1]), path) for path, found in _named(run.path / "evidence", r"attempt-(\d+)")]
    return {attempt: _of_attempt(path) for attempt, path in sorted(folders)[-MOST_ATTEMPTS:]}


def _of_attempt(folder: Path) -> Evidence:
    stacks = [(int(found[1]), path) for path, found in _named(folder, r"rank-(\d+)\.stack\.txt")]
    read_stacks = {rank: _text(path, MOST_STACK) for rank, path in sorted(stacks)[:MOST_RANKS]}
    return Evidence(str(folder), _text(folder / "table.txt", MOST_TABLE), read_stacks)


def _named(folder: Path, pattern: str) -> Iterator[tuple[Path, re.Match[str]]]:
    if folder.is_dir():
        for path in folder.iterdir():
            if found := re.fullmatch(pattern, path.name):
                yield path, found


def _text(path: Path, most: int) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(most + 1)
    except OSError:
        return ""
    return text[:most].decode(errors="replace") + (f"\n... cut; all of it: {path}" if len(text) > most else "")


# The ranks' memory over time


def _history(run: RunDir, gang: Gang) -> Mapping[int, list[Sample]]:
    """Every second sample, or every third, ... where there are too many."""
    nodes = range(min(gang.nodes, MOST_RANKS))
    every = 1 + len(nodes) * gang.ranks_on_node * history.MOST_LINES // MOST_SAMPLES
    found: dict[int, list[Sample]] = {}
    for node in nodes:
        for line in _text(Path(history.path_of(str(run.path), node)), MOST_HISTORY).splitlines()[::every]:
            try:
                _add(found, json.loads(line))
            except (ValueError, TypeError):
                continue  # the last line, half written
    return found


def _add(found: dict[int, list[Sample]], line: tuple[float, int, list[tuple[int, int, int]]]) -> None:
    at, attempt, ranks = line
    for rank, rss, completed in ranks:
        found.setdefault(int(rank), []).append(Sample(float(at), int(attempt), int(rss), int(completed)))
