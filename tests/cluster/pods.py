"""A pod's processes and links, found from outside of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.node import Node
from tests.cluster.processes import run


class Pod(NamedTuple):
    """A running pod; ``processes`` are those of one container: number inside, number on the machine."""

    node: Node
    processes: dict[int, int]

    @property
    def first(self) -> int:
        """The machine's number of the container's first process."""
        return self.processes[min(self.processes)]

    def link(self) -> str:
        """The node's end of the pod's one link."""
        (inside,) = json.loads(run("nsenter", "-t", self.first, "-n", "ip", "-j", "link", "show", "eth0"))
        links = json.loads(run("nsenter", "-t", self.node.init.pid(), "-n", "ip", "-j", "link"))
        name: str = next(link["ifname"] for link in links if link["ifindex"] == inside["link_index"])
        return name


def find(cluster: Cluster, name: str, namespace: str = "default", container: str = "") -> Pod:
    """The pod, and the processes of its ``container`` (the only or first one if not named)."""
    pod = cluster.api(f"/api/v1/namespaces/{namespace}/pods/{name}")
    for status in pod["status"].get("containerStatuses", []):
        if container in ("", status["name"]) and "running" in status["state"]:
            identity = status["containerID"].rpartition("/")[2]
            return Pod(cluster.node(pod["spec"]["nodeName"]), _processes(identity))
    raise ClusterError(f"pod {namespace}/{name} has no running container {container}: {pod['status'].get('phase')}")


def _processes(container: str) -> dict[int, int]:
    """By the name of their control group, which holds the container's."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if container in (folder / "cgroup").read_text():
                found[_innermost(folder / "status")] = int(folder.name)
        except OSError:
            continue  # it has just ended
    if not found:
        raise ClusterError(f"no process of container {container} on this machine")
    return found


def _innermost(status: Path) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith("NSpid:"))
    return int(line.split()[-1])
