"""kubectl, for what a test does to a cluster behind allranks' back."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

KUBECTL = os.environ.get("KUBECTL", "kubectl")
ADMIN = os.environ.get("KUBECONFIG", "")
"""Whoever a test becomes, this is done as the cluster's administrator."""


def kubectl(*words: str, document: dict[str, Any] | None = None) -> str:
    """Run it; what it is given as a document is read from standard input."""
    text = "" if document is None else json.dumps(document)
    done = subprocess.run(
        [KUBECTL, f"--kubeconfig={ADMIN}", *words], capture_output=True, text=True, timeout=60, input=text, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def apply(namespace: str, document: dict[str, Any]) -> None:
    kubectl("-n", namespace, "apply", "-f", "-", document=document)
