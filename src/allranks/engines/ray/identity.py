"""How a node of the engine ray learns its place: the actor that starts its agent says it."""

from __future__ import annotations

from allranks.node.place import Place, Surroundings


def place(around: Surroundings) -> Place:
    """Read the place from ``ALLRANKS_NODE``, ``ALLRANKS_NODES`` and ``ALLRANKS_COORDINATOR``. Raises NoPlace."""
    around.must_count(around.number("ALLRANKS_NODES"), "ALLRANKS_NODES")
    return around.place(around.number("ALLRANKS_NODE"), around.text("ALLRANKS_COORDINATOR"), "ALLRANKS_NODE")
