"""Hostfiles as Open MPI and DeepSpeed (``host slots=N``) and as Intel MPI and MPICH (``host:N``) write them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from allranks.spec.tree import Position

LINE = re.compile(
    r"(?P<host>[A-Za-z0-9_.\[\]-]{1,253})(?P<colon>:\d{1,6})?(?P<rest>(?:[ \t]+[\w-]+\s*=\s*[\w-]+)*)[ \t]*"
)
SLOTS = re.compile(r"\bslots\s*=\s*(\d{1,6})")
# deepspeed/launcher/runner.py reads a line by this and refuses every other.
DEEPSPEED = re.compile(r"^(\S+)\s+slots=(\d+)")


@dataclass(frozen=True)
class Host:
    """One line: ``slots`` is None where none is given."""

    name: str
    slots: int | None
    position: Position
    text: str


def is_hostfile(text: str) -> bool:
    """Whether every line names a host, and at least one says how many slots, or there is nothing else to tell by."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    found = [LINE.fullmatch(line) for line in lines]
    return bool(lines) and all(found) and any(one and (one["colon"] or SLOTS.search(one["rest"])) for one in found)


def hosts(text: str) -> Iterator[Host]:
    """The hosts, line by line; lines that name none are left out."""
    for number, line in enumerate(text.splitlines(), start=1):
        bare = line.partition("#")[0].rstrip()
        if found := LINE.fullmatch(bare.strip()):
            slots = SLOTS.search(found["rest"])
            count = int(slots[1]) if slots else int(found["colon"][1:]) if found["colon"] else None
            place = Position(number, len(bare) - len(bare.lstrip()) + 1)
            yield Host(found["host"], count, place, bare.strip())
