"""The run's record, printed where a client cannot read its file: ``record PLAN [--follow]``, run on node 0.

One line of JSON, the same as ``status -o json``; with ``--follow`` another one whenever it has changed, until standard
input ends, by which a client that has gone is noticed.
"""

from __future__ import annotations

import os
import select
import sys
from typing import List

from allranks.node.gang import load

POLL = 0.1
NONE_YET = 69


def main(argv: List[str]) -> int:
    """Print the record; NONE_YET when there is none."""
    path = os.path.join(load(argv[0]).state, "status.json")
    if argv[1:] == ["--follow"]:
        _follow(path)
        return 0
    text = _read(path)
    if not text:
        print("the coordinator has written no record yet", file=sys.stderr)
        return NONE_YET
    _say(text)
    return 0


def _follow(path: str) -> None:
    last = ""
    while not select.select([0], [], [], POLL)[0] or os.read(0, 4096):
        text = _read(path)
        if text and text != last:
            last = text
            _say(text)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
