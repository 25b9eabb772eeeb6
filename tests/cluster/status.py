"""What is up, and why not."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.api import Api
from tests.cluster.cluster import Cluster
from tests.cluster.components import operators
from tests.cluster.errors import ClusterError, NotRunning
from tests.cluster.layout import LOG
from tests.cluster.node import Node
from tests.cluster.operators import well
from tests.cluster.processes import Init, tail
from tests.cluster.world import WORLD


def report() -> str:
    """One line a process and a node; of what is not well also its last words."""
    try:
        cluster = Cluster.running()
    except NotRunning as error:
        return str(error)
    return "\n".join(
        [
            *_processes("", WORLD),
            *(line for name in cluster.nodes for line in _processes(f"{name} ", Node(name).init)),
            *_health(cluster),
            *_nodes(),
        ]
    )


def _processes(prefix: str, init: Init) -> list[str]:
    try:
        found = init.children()
    except OSError as error:
        return [f"{prefix:<24} down: {error}"]
    lines = []
    for name, one in found.items():
        again = f", started {one['starts']} times" if one["starts"] > 1 else ""
        if one["pid"] is not None:
            lines.append(f"{prefix + name:<24} up{again}")
        else:
            lines += [f"{prefix + name:<24} down, exit {one['code']}{again}: {one['log']}"]
            lines += [f"    {line}" for line in tail(Path(one["log"])).splitlines()]
    return lines


def _health(cluster: Cluster) -> list[str]:
    lines = []
    for operator in operators(cluster.trainer):
        try:
            state = "well" if well(operator) else "not well"
        except OSError as error:
            state = f"not well: {error} (log: {LOG / operator.name}.log)"
        lines.append(f"{operator.name + ' ' + operator.version:<24} {state}")
    return lines


def _nodes() -> list[str]:
    try:
        nodes = Api().call("/api/v1/nodes")["items"]
    except (OSError, ClusterError) as error:
        return [f"the API server does not answer: {error}"]
    lines = []
    for node in nodes:
        ready = next(c for c in node["status"]["conditions"] if c["type"] == "Ready")
        taints = ", ".join(taint["key"] for taint in node["spec"].get("taints", []))
        state = "Ready" if ready["status"] == "True" else f"not Ready: {ready.get('message', '')}"
        lines.append(f"{node['metadata']['name']:<24} {state}{f' (tainted: {taints})' if taints else ''}")
    return lines
