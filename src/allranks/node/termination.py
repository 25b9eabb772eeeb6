"""What a node leaves behind of a run: the record with its causes, in a file of at most 4096 bytes.

That is what Kubernetes keeps of a container (its terminationMessagePath). Every node's says the same, so that the cause
is right whichever of them is read.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Iterator, Mapping

from allranks.node.gang import Gang
from allranks.node.status import Status

LARGEST = 4096
FEW_LINES = 5
KEPT = (
    "name", "engine", "phase", "reason", "attempt", "restarts", "world_size", "started", "ended", "exit_code", "causes",
)  # fmt: skip

Record = Dict[str, Any]


def cut(status: Status, largest: int = LARGEST) -> Record:
    """The status without its nodes, cut until its JSON has at most ``largest`` bytes.

    In this order go the tails of older causes, the oldest lines of the last one's tail, the older causes, what is left
    of the tail, the ranks that fell with it, and the end of long messages.
    """
    whole = status.to_json()
    record = {name: whole[name] for name in KEPT}
    steps = _cuts(record)
    while len(json.dumps(record)) > largest and next(steps, False):
        pass
    return record


def _cuts(record: Record) -> Iterator[bool]:
    """Each step makes the record smaller."""
    causes = record["causes"]
    for older in causes[:-1]:
        older.update(tail=[])
        yield True
    for last in causes[-1:]:
        while len(last["tail"]) > FEW_LINES:
            del last["tail"][0]
            yield True
    while len(causes) > 1:
        del causes[0]
        yield True
    for last in causes:
        for name, first in (("tail", 0), ("secondary", -1)):
            while last[name]:
                del last[name][first]
                yield True
    for length in (200, 100, 50):
        record["reason"] = record["reason"][:length]
        for last in causes:
            last.update(log="", message=last["message"][:length])
        yield True


def write(gang: Gang, node: int, record: Mapping[str, Any]) -> None:
    """Leave the record where the plan says, if it does. Raises OSError.

    Not by renaming: in a container the file is mounted, and only it may be written.
    """
    path = gang.termination_of(node)
    if path:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="ascii") as file:
            json.dump(record, file)
