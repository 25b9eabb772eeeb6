"""Gangs on the cluster of `make cluster`, by allranks' command line, and what is seen of them there."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.images.kinds import BASE
from tests.cluster.namespace import Namespace, await_gone

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 180.0
PROGRAM = "says_steps.py"
STEPPING = f"python -u /bench/{PROGRAM}"
PLAIN = "python -u /bench/says_steps_plain.py"
"""The same, with nothing to import."""
NODES = 2
STEP = re.compile(r"rank (\d+) \| step (\d+) at ([\d.]+)")


class Wrong(Exception):
    """What should have happened did not."""


BROKEN = (Wrong, ClusterError, OSError, LookupError, ValueError, subprocess.TimeoutExpired)


@dataclass
class Row:
    """One fault on one engine: what each time took (seconds), and what was not as it should be."""

    engine: str
    what: str
    took: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def line(self, times: int) -> str:
        spread = f"{min(self.took):.2f}-{max(self.took):.2f} s" if self.took else "-"
        median = f"{statistics.median(self.took):.2f} s" if self.took else "-"
        return f"| {self.what} | {self.engine} | {times - len(self.wrong)} of {times} | {median} | {spread} |"


class Gang:
    """A gang in a namespace of its own. On these ``hosts``, if any are named, it has a node on each of two.

    With ``memory`` it may ask its API server (``failure.force_delete``). ``every`` is how often (seconds) it is looked
    at: many looks at many gangs would be all that a small machine does.
    """

    def __init__(
        self,
        cluster: Cluster,
        engine: str,
        folder: Path,
        run: str = STEPPING,
        *,
        ranks: int = 2,
        hosts: Sequence[str] = (),
        memory: bool = True,
        every: float = 0.3,
        **failure: Any,
    ) -> None:
        self.cluster, self.engine, self.ranks, self._every = cluster, engine, NODES * ranks, every
        self.space = Namespace(cluster, f"bench {engine}")
        self._memory = folder / "state" / self.space.name  # all runs have one name
        spec = {
            "kind": "Job", "name": "gang", "nodes": NODES, "ranks_per_node": ranks, "image": BASE, "run": run,
            "env": {"OMP_NUM_THREADS": 1}, "volumes": [{"host": str(ROOT / "bench/programs"), "path": "/bench"}],
            "schedule": {"namespace": self.space.name}, "pod": _apart(hosts),
            "failure": {
                "grace": "5s", "restarts": 100, "start_timeout": "3m", "force_delete": memory, **failure,
            },
        }  # fmt: skip
        path = folder / f"{self.space.name}.json"
        path.write_text(json.dumps(spec))
        self.allranks("run", "--detach", "--engine", engine, str(path))

    def allranks(self, *words: str) -> str:
        env = {**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig), "XDG_STATE_HOME": str(self._memory)}
        argv = [sys.executable, "-m", "allranks", *words]
        done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=PATIENCE, check=False)
        if done.returncode:
            raise Wrong(f"allranks {' '.join(words)} ended with {done.returncode}: {done.stderr[-500:]}")
        return done.stdout

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.allranks("status", "gang", "-o", "json"))
        return found

    def until(self, what: str, wanted: Callable[[dict[str, Any]], bool], seconds: float = PATIENCE) -> dict[str, Any]:
        """The first status that is as wanted; raises Wrong."""
        until = time.monotonic() + seconds
        while not wanted(status := self.status()):
            if time.monotonic() > until:
                raise Wrong(f"not {what} within {seconds:.0f} s: {status['phase']}: {status['reason']}")
            time.sleep(self._every)
        return status

    def running(self, after: int = -1) -> dict[str, Any]:
        """The status when all ranks of an attempt later than that one run."""

        def all_of_them(status: dict[str, Any]) -> bool:
            ranks = sum(len(node["ranks"]) for node in status["nodes"])
            return status["phase"] == "running" and status["attempt"] > after and ranks == self.ranks

        return self.until(f"running after attempt {after}", all_of_them)

    def steps(self, attempt: int, after: float = 0.0, seconds: float = PATIENCE) -> dict[int, list[float]]:
        """When each rank made its steps in that attempt, as soon as all have made one after that moment."""
        until = time.monotonic() + seconds
        while True:
            found: dict[int, list[float]] = {}
            for rank, _, at in STEP.findall(self.allranks("logs", "gang", "--attempt", str(attempt))):
                found.setdefault(int(rank), []).append(float(at))
            there = sorted(rank for rank, steps in found.items() if max(steps) > after)
            if len(there) == self.ranks:
                return found
            if time.monotonic() > until:
                raise Wrong(f"attempt {attempt}: only ranks {there} step after {seconds:.0f} s")
            time.sleep(self._every)

    def back(self, attempt: int) -> float:
        """When the last rank made its first step in that attempt."""
        return max(min(steps) for steps in self.steps(attempt).values())

    def pods(self) -> list[str]:
        """Each pod with how often its container was started."""
        return sorted(
            f"{pod['metadata']['uid']} {[one['restartCount'] for one in pod['status'].get('containerStatuses', [])]}"
            for pod in self.space.list("pods")
        )

    def pod(self, status: dict[str, Any], node: int) -> str:
        name: str = status["nodes"][node]["name"]
        return name

    def on(self, status: dict[str, Any], host: str) -> int:
        """Which of its nodes is on that host; raises Wrong."""
        for node in range(NODES):
            if self.space.get("pod", self.pod(status, node))["spec"]["nodeName"] == host:
                return node
        raise Wrong(f"no node of it is on {host}")

    def close(self) -> None:
        self.space.end()
        await_gone(self.cluster, [self.space.name])


def check_restart(before: dict[str, Any], after: dict[str, Any], expected: dict[str, Any]) -> None:
    """One restart, one cause, and that names what is expected; raises Wrong."""
    wrong = []
    if after["attempt"] // 1000 == before["attempt"] // 1000 and after["attempt"] != before["attempt"] + 1:
        wrong.append(f"attempt {after['attempt']} came after {before['attempt']}")
    if after["restarts"]["used"] != before["restarts"]["used"] + 1:
        wrong.append(f"used {after['restarts']['used']} restarts after {before['restarts']['used']}")
    if len(after["causes"]) != min(len(before["causes"]) + 1, 50):
        wrong.append(f"{len(after['causes'])} causes after {len(before['causes'])}")
    cause = after["causes"][-1] if after["causes"] else {"message": "none"}
    expected = {"attempt": before["attempt"], **expected}
    if seen := {name: cause.get(name) for name, value in expected.items() if cause.get(name) != value}:
        wrong.append(f"the cause has {seen}, not {expected}: {cause['message']}")
    if wrong:
        raise Wrong("; ".join(wrong))


def _apart(hosts: Sequence[str]) -> dict[str, Any]:
    spread = {
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"allranks.dev/run": "gang"}},
    }  # fmt: skip
    if not hosts:
        return {"topologySpreadConstraints": [spread]}
    named = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(hosts)}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [named]}}
    return {"topologySpreadConstraints": [spread], "affinity": {"nodeAffinity": required}}
