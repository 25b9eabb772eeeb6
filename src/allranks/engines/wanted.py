"""What is wanted of a run, on every engine: whether it has that, and whether more of it is to come."""

from __future__ import annotations

from collections.abc import Iterable

from allranks.engines.engine import LogFilter
from allranks.errors import UsageError
from allranks.node.status import Status


def must_have(run: str, what: str, numbers: Iterable[int], size: int) -> None:
    """Raise UsageError for the first rank or node (``what``) that a run of so many does not have."""
    for number in sorted(numbers):
        if not 0 <= number < size:
            raise UsageError(f"run {run} has no {what} {number}; it has {what}s 0 to {size - 1}")


def must_have_node(run: str, node: int, nodes: int) -> None:
    """The same of the node that ``--node`` names."""
    if not 0 <= node < nodes:
        raise UsageError(f"--node {node}: {run} has nodes 0 to {nodes - 1}")


def is_told(status: Status, wanted: LogFilter) -> bool:
    """Whether no line is to come: the run is over, or the wanted command, or an idle gang runs none."""
    if wanted.command is None or status.is_over:
        return status.is_over or status.phase == "idle"
    return status.of_command(wanted.command).is_over
