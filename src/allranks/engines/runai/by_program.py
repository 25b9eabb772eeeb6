"""What the ``runai`` program alone can tell and do, where there is no kubeconfig: a workload, and no ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.engines.engine import LogFilter, LogLine
from allranks.engines.runai import program
from allranks.node.status import Status

PHASES = {
    "succeeded": "succeeded", "completed": "succeeded", "failed": "failed", "running": "running",
    "pending": "pending", "creating": "pending", "initializing": "starting", "deleting": "cancelled",
}  # fmt: skip
NOTE = "by the program runai: with a kubeconfig of the cluster ranks and causes are told too"


def status(name: str) -> Status:
    """Its phase by Run:ai's own word. Raises NotFound, EngineError."""
    said = program.ask(program.DESCRIBE, name)
    word = re.search(r"^\W*(?:status|phase)\W+(\w+)", said, re.IGNORECASE | re.MULTILINE)
    phase = PHASES.get(word[1].lower(), "pending") if word else "pending"
    found = Status(name, "runai", phase, f"Run:ai says: {word[1]}" if word else "", notes=[NOTE])
    if phase in ("succeeded", "failed", "cancelled"):
        found.end(phase, found.reason, 0 if phase == "succeeded" else 1)
    return found


def logs(name: str, wanted: LogFilter) -> Iterator[LogLine]:
    """What its pod that the program chooses has printed. Raises NotFound, EngineError."""
    from allranks.node.relay import parse

    for text in program.ask(program.LOGS, name).splitlines():
        found = parse(text)
        if found is not None:
            attempt, node, rank, line = found
            if not wanted.ranks or rank in wanted.ranks:
                yield LogLine(attempt, node or 0, rank, line)


def cancel(name: str, reason: str, code: int) -> Status:
    """Delete it. Raises NotFound, EngineError."""
    before = status(name)
    if not before.is_over:
        program.ask(program.DELETE, name)
        before.end("cancelled", reason, code)
    return before
