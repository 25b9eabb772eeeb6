"""How a node of the local engine learns its place: the engine's own variables say it."""

from __future__ import annotations

from typing import Mapping

from allranks.node.place import Place


def place(env: Mapping[str, str]) -> Place:
    """Read the place from ``ALLRANKS_NODE``, ``ALLRANKS_NODES`` and ``ALLRANKS_COORDINATOR``."""
    return Place(int(env["ALLRANKS_NODE"]), int(env["ALLRANKS_NODES"]), env["ALLRANKS_COORDINATOR"])
