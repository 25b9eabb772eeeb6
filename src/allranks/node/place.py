"""What a node knows of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A node's index in ``range(nodes)``, the gang's node count and where its coordinator listens.

    ``coordinator`` is a host name or an address; it is resolved anew on every dial.
    """

    node: int
    nodes: int
    coordinator: str
