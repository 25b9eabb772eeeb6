"""nccl-tests' own output as a curve: old layouts (``error``, no root) and new ones (``#wrong``, ``N/A``).

The columns from time on are read from the right by their head, since those before it differ by version and operation
and may be empty (writeBenchmarkLineBody and its neighbours in nccl-tests' src/util.cu, earlier in src/common.cu).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.bench.collectives import COLLECTIVES
from allranks.bench.result import Curve, Row

NAMES = {"alltoall": "all_to_all"}
"""nccl-tests' name to ours, where they differ; what we do not measure ourselves keeps its own."""

RANK = re.compile(r"#?\s*Rank\s+(\d+) .*? on\s+(\S+) device\s+\d+ \[\S+\] (.*?)\s*$")
PROGRAM = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|alltoall|broadcast|sendrecv|reduce|gather|scatter)_perf\b"
)
TITLE = re.compile(r"#.*Collective test starting: (\w+)_perf")
VERSION = re.compile(r"nccl-tests version (\S+?)(?:,| |$)")
LIBRARY = re.compile(r"nccl-library=(\d+)|NCCL version (\d+\.\d+\.\d+)")
ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+([a-z][a-z0-9_]*)\s+(.*?)\s*$")
NUMBER = re.compile(r"[0-9.]+(e[-+]?\d+)?|N/A")
CLOCK = re.compile(r"\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$")
USUAL = ["time", "algbw", "busbw", "#wrong"]
"""One placement's columns."""

ROUNDING = 1e-2


class NotALog(Exception):
    """There is no table of nccl-tests in it; the message says what was found."""


def read(text: str, label: str = "", *, in_place: bool = False) -> Curve:
    """The curve of a log: out-of-place, as most tools take it, or ``in_place``. Raises NotALog."""
    name, facts = _facts(text)
    rows = tuple(_rows(text, name, in_place))
    if not rows:
        raise NotALog("it holds no row such as '  1048576  262144  float  sum  -1  28.15  37.25  65.19  0 ...'")
    if not facts.get("ranks"):
        facts["ranks"] = _ranks_by_factor(rows)
    ended = "Avg bus bandwidth" in text
    return Curve(label, facts, rows, ended)


def _facts(text: str) -> tuple[str, dict[str, object]]:
    """The collective, and on what it was measured."""
    ranks = {int(number): (host, device) for number, host, device in map(_rank, text.splitlines()) if number != ""}
    titles = TITLE.search(text) or PROGRAM.search(text)
    version, library = VERSION.search(text), LIBRARY.search(text)
    facts: dict[str, object] = {"backend": "nccl", "ranks": len(ranks)}
    facts["nodes"] = len({host for host, _ in ranks.values()}) or 1
    if ranks:
        facts["device"] = next(iter(ranks.values()))[1]
    if version:
        facts["nccl_tests"] = version.group(1)
    if library:
        facts["nccl"] = library.group(2) or _dotted(int(library.group(1)))
    found = titles.group(1) if titles else ""
    return NAMES.get(found, found), facts


def _rank(line: str) -> tuple[str, str, str]:
    found = RANK.search(line)
    return (found.group(1), found.group(2), found.group(3)) if found else ("", "", "")


def _dotted(code: int) -> str:
    """22907 is 2.29.7, and before 2.9 2807 is 2.8.7 (nccl.h, NCCL_VERSION)."""
    major, rest = divmod(code, 10000 if code >= 10000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _rows(text: str, name: str, in_place: bool) -> Iterator[Row]:
    columns = 2 * USUAL
    for line in text.splitlines():
        if "algbw" in line and line.lstrip().startswith(("#", "size")):
            columns = _columns(line)
        found = ROW.match(line)
        row = _row(found, name, columns, in_place) if found else None
        if row is not None:
            yield row


def _columns(head: str) -> list[str]:
    """What the head names from the first time on; a clock at its end (``-W``) is none of a placement's."""
    words = ["time" if word == "cputime" else word for word in head.split()]
    return [word for word in words[words.index("time") :] if word != "timestamp"] if "time" in words else 2 * USUAL


def _row(found: re.Match[str], name: str, columns: list[str], in_place: bool) -> Row | None:
    """One placement's figures; in-place alone (trace replay) leaves the other one blank."""
    size, count, _, rest = found.groups()
    words = CLOCK.sub("", rest).split()
    for names in (columns, columns[: len(columns) // 2]):
        numbers = words[-len(names) :]
        if len(numbers) == len(names) and all(NUMBER.fullmatch(word) for word in numbers):
            break
    else:
        return None
    pairs = list(zip(names, numbers, strict=True))
    value = dict(pairs if in_place else reversed(pairs))
    guessed = name or ("all_reduce" if "sum" in words else "unknown")
    seconds, speed, bus = (float(value[column]) for column in ("time", "algbw", "busbw"))
    return Row(guessed, int(size), int(count), seconds / 1e6, speed, bus, _wrong(value))


def _wrong(value: dict[str, str]) -> int | None:
    """Old builds print the largest difference as ``error``; rounding is none."""
    text = value.get("#wrong", value.get("error", "N/A"))
    if text == "N/A":
        return None
    return int(float(text)) if "#wrong" in value else int(float(text) > ROUNDING)


def _ranks_by_factor(rows: tuple[Row, ...]) -> int:
    """How many ranks there were, by busbw over algbw; 0 where that does not tell."""
    row = max(rows, key=lambda row: row.algbw)
    if row.collective not in COLLECTIVES or not row.algbw:
        return 0
    factor, ratio = COLLECTIVES[row.collective].factor, row.busbw / row.algbw
    near = min(range(1, 4097), key=lambda ranks: abs(factor(ranks) - ratio))
    return near if COLLECTIVES[row.collective].factor(2) != COLLECTIVES[row.collective].factor(3) else 0
