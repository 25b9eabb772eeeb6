"""The run's record: a file beside the coordinator, replaced whole, and how a client gets it that cannot read the file.

``record PLAN [--follow]``, run on node 0, prints it: one line of JSON, the same as ``status -o json``; with
``--follow`` another one whenever it has changed, until standard input ends, by which a client that has gone is noticed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
from typing import List, Optional

from allranks.node.files import FULL, write_whole
from allranks.node.gang import load
from allranks.node.status import Status

RECORD = "status.json"
SPARE, SPARE_OF_A_RANK = 128 * 1024, 256
POLL = 0.1
NONE_YET = 69


def reserve(state: str, world_size: int) -> None:
    """Take place on the disk now for the record of how the run ends. Raises OSError when there is less."""
    with open(_spare(state), "wb") as file:
        file.write(b"\n" * (SPARE + SPARE_OF_A_RANK * world_size))


def _spare(state: str) -> str:
    return os.path.join(state, "status.spare")


def write_record(state: str, status: Status) -> None:
    """Replace status.json whole: a reader sees the old or the new one. Raises OSError.

    On a full disk the last record takes the place that was reserved for it; so does that of a command's end, which
    leaves what is left of it.
    """
    path, text = os.path.join(state, RECORD), json.dumps(status.to_json())
    try:
        write_whole(path, text)
    except OSError as error:
        ends = status.is_over or status.phase == "idle"
        if error.errno not in FULL or not ends or not os.path.exists(_spare(state)):
            raise
        os.unlink(_spare(state))
        write_whole(path, text)
        if not status.is_over:
            with contextlib.suppress(OSError):
                reserve(state, status.world_size)


def read_record(state: str) -> Optional[Status]:
    """What an earlier coordinator of this run wrote last, if it is whole."""
    try:
        with open(os.path.join(state, RECORD), encoding="utf-8") as file:
            return Status.from_json(json.load(file))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def main(argv: List[str]) -> int:
    """Print the record; NONE_YET when there is none."""
    path = os.path.join(load(argv[0]).state, RECORD)
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
