"""One command line after another in a namespace of a test's own, on the cluster that is up."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.images.kinds import BASE
from tests.cluster.namespace import Namespace

ENGINES = ["jobset", "mpijob", "trainjob", "pytorchjob"]
"""Those that need nothing but an operator."""
PATIENCE = 180.0  # seconds: pods of other tests may still be going


@dataclass
class Space:
    """One namespace, and allranks at work in it."""

    cluster: Cluster
    name: str
    folder: Path

    def spec(self, name: str = "gang", **fields: Any) -> Path:
        """Write a spec of two nodes with two ranks; fields are added or replaced."""
        spec = {
            "kind": "Job", "name": name, "nodes": 2, "ranks_per_node": 2, "image": BASE,
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


@pytest.fixture
def space(cluster: Cluster, namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Space:
    """Everything in the namespace goes with it, whatever the test left."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    return Space(cluster, namespace.name, tmp_path)
