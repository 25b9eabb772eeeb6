"""A namespace of a test's own: what it applies, awaits and reads there, what is kept of it, and its end."""

from __future__ import annotations

import json
import os
import random
import string
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from string import Template
from typing import Any, TypeVar

from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.processes import wait

Object = dict[str, Any]  # as the API server gives it
Found = TypeVar("Found")

SESSION = "allranks.dev/test-session"  # label: the pid of the pytest that made it
OWNER = "allranks.dev/test-namespace"  # label of an object outside namespaces: the one that it goes with
# Kinds outside namespaces that tests make, and what is worth keeping of a failed test; those not served are left out.
OUTSIDE = ("clustertrainingruntimes.trainer.kubeflow.org", "clusterqueues.kueue.x-k8s.io",
           "resourceflavors.kueue.x-k8s.io")  # fmt: skip
KEPT = ("pods", "services", "configmaps", "jobs.batch", "mpijobs.kubeflow.org", "pytorchjobs.kubeflow.org",
        "trainjobs.trainer.kubeflow.org", "trainingruntimes.trainer.kubeflow.org", "jobsets.jobset.x-k8s.io",
        "rayservices.ray.io", "rayclusters.ray.io", "rayjobs.ray.io", "workloads.kueue.x-k8s.io")  # fmt: skip


class Namespace:
    """Use as long as the test runs; ``end`` it and ``await_gone`` later."""

    def __init__(self, cluster: Cluster, test: str) -> None:
        self._cluster = cluster
        self.name = "t-" + "".join(random.choices(string.ascii_lowercase, k=6))
        self.test = test
        cluster.kubectl("create", "namespace", self.name)
        cluster.kubectl("label", "namespace", self.name, f"{SESSION}={os.getpid()}")

    def kubectl(self, *args: str) -> str:
        """Kubectl in this namespace."""
        return self._cluster.kubectl("-n", self.name, *args)

    def apply(self, manifest: Path, folder: Path, **values: str) -> None:
        """Apply a YAML file with its ``${namespace}`` and ``${...}`` filled in; ``folder`` keeps what was applied."""
        filled = folder / manifest.name
        filled.write_text(Template(manifest.read_text()).substitute(values, namespace=self.name))
        self.kubectl("apply", "-f", str(filled))

    def files(self, name: str, paths: Iterable[Path]) -> None:
        """A ConfigMap of these files."""
        self.kubectl("create", "configmap", name, *(f"--from-file={path}" for path in paths))

    def get(self, kind: str, name: str) -> Object:
        """One object."""
        found: Object = json.loads(self.kubectl("get", kind, name, "-o", "json"))
        return found

    def list(self, kind: str, selector: str = "") -> list[Object]:
        """All objects of a kind, those of a label selector."""
        found = json.loads(self.kubectl("get", kind, "-l", selector, "-o", "json"))
        items: list[Object] = found["items"]
        return items

    def conditions(self, kind: str, name: str) -> set[str]:
        """The types of the conditions that are True."""
        seen = self.get(kind, name).get("status", {}).get("conditions", [])
        return {condition["type"] for condition in seen if condition["status"] == "True"}

    def await_condition(self, kind: str, name: str, wanted: str, seconds: float = 240) -> None:
        """Wait for a condition to be True, or for the object to fail instead, which is an AssertionError."""

        def seen() -> set[str]:
            now = self.conditions(kind, name)
            return now if {wanted, "Failed"} & now else set()

        assert wanted in self.wait(f"{kind} {name} to be {wanted}", seen, seconds), f"{kind} {name} failed"

    def wait(self, what: str, seen: Callable[[], Found | None], seconds: float = 240) -> Found:
        """What ``seen`` returns as soon as that is something; ClusterError if it is nothing all the time."""
        return wait(what, seen, seconds, every=0.3)

    def logs(self) -> dict[str, str]:
        """What the main container of every pod has printed so far; of a pod that does not run yet, why it has not."""
        return {pod["metadata"]["name"]: self._try("logs", pod["metadata"]["name"]) for pod in self.list("pods")}

    def await_said(self, text: str, times: int = 1, seconds: float = 240) -> str:
        """All that the pods have said, as soon as they have said ``text`` so often."""

        def said() -> str:
            all_of_it = "\n".join(self.logs().values())
            return all_of_it if all_of_it.count(text) >= times else ""

        return self.wait(f"the pods to say {text!r} {times} times", said, seconds)

    def go(self, selector: str) -> None:
        """Let a launcher of these tests end, which waits for a file."""
        for pod in self.list("pods", selector):
            self.kubectl("exec", pod["metadata"]["name"], "--", "touch", "/tmp/go")

    def keep(self, folder: Path) -> Path:
        """Write what explains a failure into ``folder``: objects, events and logs, but no Secret."""
        folder.mkdir(parents=True, exist_ok=True)
        kinds = ",".join(kind for kind in KEPT if self.serves(kind))
        for file, args in {
            "pods.txt": ["get", "pods", "-o", "wide"],
            "events.txt": ["get", "events", "--sort-by=.lastTimestamp"],
            "objects.yaml": ["get", kinds, "-o", "yaml"],
        }.items():
            (folder / file).write_text(self._try(*args))
        for pod in self.list("pods"):
            name, spec = pod["metadata"]["name"], pod["spec"]
            for container in (*spec.get("initContainers", []), *spec["containers"]):
                log = self._try("logs", name, "-c", container["name"])
                (folder / f"{name}.{container['name']}.log").write_text(log)
        return folder

    def end(self) -> None:
        """Begin its deletion, and that of what goes with it; nothing new can be made there from now on."""
        self._cluster.kubectl("delete", "namespace", self.name, "--wait=false")
        self._try("delete", "pods", "--all", "--grace-period=1", "--wait=false")
        delete_outside(self._cluster, self.name)

    def serves(self, kind: str) -> bool:
        """Whether the API server knows the kind, such as ``jobs.batch``."""
        return kind in self._served

    @cached_property
    def _served(self) -> set[str]:
        return set(self._cluster.kubectl("api-resources", "--namespaced=true", "-o", "name").split())

    def _try(self, *args: str) -> str:
        try:
            return self.kubectl(*args)
        except ClusterError as problem:
            return f"{problem}\n"


def delete_outside(cluster: Cluster, namespace: str) -> None:
    """What was made outside namespaces for this one."""
    served = set(cluster.kubectl("api-resources", "--namespaced=false", "-o", "name").split())
    if kinds := ",".join(kind for kind in OUTSIDE if kind in served):
        cluster.kubectl("delete", kinds, "-l", f"{OWNER}={namespace}", "--wait=false")


def delete_abandoned(cluster: Cluster) -> None:
    """The namespaces of sessions that were killed."""
    listed = json.loads(cluster.kubectl("get", "namespaces", "-l", SESSION, "-o", "json"))
    for found in listed["items"]:
        if not Path("/proc", found["metadata"]["labels"][SESSION]).exists():
            name = found["metadata"]["name"]
            cluster.kubectl("delete", "namespace", name, "--wait=false")
            delete_outside(cluster, name)


def await_gone(cluster: Cluster, namespaces: Iterable[str], seconds: float = 120) -> None:
    """Wait until the namespaces are deleted; ClusterError if some are still there then."""
    mine = set(namespaces)

    def gone() -> bool:
        listed = cluster.kubectl("get", "namespaces", "-o", "name").split()
        return not mine & {line.removeprefix("namespace/") for line in listed}

    wait(f"the namespaces {', '.join(sorted(mine))} to be deleted", gone, seconds, every=0.3)
