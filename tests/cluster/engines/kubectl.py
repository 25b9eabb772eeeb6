"""kubectl, for what a test does to a cluster behind allranks' back: as its admin, whoever the test has become."""

from __future__ import annotations

import json
from typing import Any

from tests.cluster.cluster import Cluster


def kubectl(*words: str, document: dict[str, Any] | None = None) -> str:
    """Run it; what it is given as a document is read from standard input."""
    return Cluster.running().kubectl(*words, text=None if document is None else json.dumps(document))


def apply(namespace: str, document: dict[str, Any]) -> None:
    kubectl("-n", namespace, "apply", "-f", "-", document=document)
