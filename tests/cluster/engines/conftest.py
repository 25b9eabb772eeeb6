"""A namespace of a test's own in the cluster that KUBECONFIG names. Skipped, loudly, where it names none."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from allranks.engines.kubernetes.client import Client, connect
from tests.cluster.engines.kubectl import kubectl

IMAGE = os.environ.get("ALLRANKS_TEST_IMAGE", "docker.io/kc/node:1")
PYTHON = os.environ.get("ALLRANKS_TEST_PYTHON", sys.executable)
PATIENCE = 120.0


@dataclass
class Space:
    """One namespace, and allranks at work in it."""

    client: Client
    name: str
    folder: Path

    def spec(self, engine: str = "jobset", name: str = "gang", **fields: Any) -> Path:
        """Write a spec of two nodes with two ranks; fields are added or replaced."""
        spec = {
            "kind": "Job", "name": name, "nodes": 2, "ranks_per_node": 2, "image": IMAGE,
            "run": ["python3", "-uc", "import time; print('hello'); time.sleep(600)"],
            "schedule": {"namespace": self.name}, "failure": {"grace": "2s", "restarts": 2, "start_timeout": "90s"},
            **fields,
        }  # fmt: skip
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(spec))
        return path

    def allranks(self, *words: str, timeout: float = PATIENCE, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """One command line of ours, to its end."""
        argv = [sys.executable, "-m", "allranks", *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=timeout, input=stdin, check=False)

    def start(self, engine: str, spec: Path) -> None:
        done = self.allranks("run", "--detach", "--engine", engine, str(spec))
        assert done.returncode == 0, done.stderr

    def status(self, name: str = "gang") -> dict[str, Any]:
        done = self.allranks("status", name, "-o", "json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def until(self, wanted: Callable[[dict[str, Any]], bool], name: str = "gang", seconds: float = PATIENCE) -> Any:
        """The first status that is as wanted."""
        until = time.monotonic() + seconds
        while not wanted(status := self.status(name)):
            assert time.monotonic() < until, f"not within {seconds:.0f} s: {json.dumps(status, indent=1)}"
            time.sleep(0.5)
        return status


@pytest.fixture(scope="session")
def cluster() -> Client:
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG names no cluster to try this on")
    return connect()


@pytest.fixture
def space(cluster: Client, tmp_path: Path) -> Iterator[Space]:
    """Everything in the namespace goes with it, whatever the test left."""
    name = f"t-{secrets.token_hex(4)}"
    kubectl("create", "namespace", name)
    try:
        yield Space(cluster, name, tmp_path)
    finally:
        kubectl("delete", "namespace", name, "--wait=false")
