"""The running cluster, for tests and the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.cluster import pki
from tests.cluster.api import Api
from tests.cluster.components import K8S, operators
from tests.cluster.errors import NotRunning
from tests.cluster.layout import KUBECONFIG, READY, RUN
from tests.cluster.node import Node
from tests.cluster.node_config import mounted, write_base_specs
from tests.cluster.processes import run
from tests.cluster.world import WORLD


class Cluster:
    """``Cluster.running()`` is the one that is up; its faults are functions of ``tests.cluster.faults``."""

    def __init__(self, trainer: str, nodes: list[str]) -> None:
        self.trainer = trainer
        self.nodes = nodes
        self.kubeconfig = KUBECONFIG
        self.binary = K8S.binary("kubectl")

    @classmethod
    def running(cls) -> Cluster:
        """Raises NotRunning when there is none, or one that is only half there."""
        if not READY.exists():
            raise NotRunning("No cluster is up; `make cluster` boots one.")
        if WORLD.pid() is None:
            raise NotRunning(f"The cluster of {RUN} has ended; `make cluster` cleans up and boots another.")
        ready = json.loads(READY.read_text())
        return cls(ready["trainer"], ready["nodes"])

    def kubectl(self, *args: object, text: str | None = None, check: bool = True, seconds: float = 120) -> str:
        """The output of kubectl as the admin; ``text`` is its input. Raises ClusterError with its last words."""
        return run(self.binary, "--kubeconfig", KUBECONFIG, *args, text=text, check=check, seconds=seconds)

    def api(self, path: str, body: Any = None, method: str | None = None, kind: str = "application/json") -> Any:
        """One request to the API server as the admin; raises ApiError with its ``code``."""
        return self._api.call(path, body, method, kind)

    def node(self, name: str) -> Node:
        """The node of that name."""
        if name not in self.nodes:
            raise NotRunning(f"no node {name}; there are {', '.join(self.nodes)}")
        return Node(name)

    def import_image(self, archive: Path) -> None:
        """Load an image (docker-archive or OCI tar) into every node."""
        for name in self.nodes:
            self.node(name).import_image(archive.absolute())

    def mount(self, mounts: Mapping[str, Path]) -> None:
        """Have containers of the default runtime see these folders, read-only, at these paths too; only new ones do."""
        there = mounted()
        wanted = {**there, **mounts}
        if wanted == there:
            return
        write_base_specs(wanted)
        for name in self.nodes:
            if self.node(name).init.pid() is not None:
                self.node(name).restart_containerd()

    @property
    def versions(self) -> dict[str, str]:
        """Of each operator."""
        return {operator.name: operator.version for operator in operators(self.trainer)}

    def advertise(self, node: str, resources: Mapping[str, int]) -> None:
        """Have the node offer extended resources, such as ``{"nvidia.com/gpu": 2, "rdma/rdma": 1}``.

        There is no device behind them. 0 withdraws one from scheduling.
        """
        offered = {name: str(count) for name, count in resources.items()}
        status = {"status": {"capacity": offered, "allocatable": offered}}
        self._api.merge(f"/api/v1/nodes/{node}/status", status)

    def label(self, node: str, labels: Mapping[str, str | None]) -> None:
        """Set labels of the node; None removes one."""
        self._api.merge(f"/api/v1/nodes/{node}", {"metadata": {"labels": dict(labels)}})

    def taint(self, node: str, taints: list[dict[str, str]]) -> None:
        """Have exactly these taints on the node, such as ``{"key": "gpu", "value": "", "effect": "NoSchedule"}``."""
        self._api.merge(f"/api/v1/nodes/{node}", {"spec": {"taints": taints or None}})

    def user(self, name: str, group: str = "") -> Path:
        """The kubeconfig of a user with no rights but those that RoleBindings give to the name or group."""
        path = RUN / f"{name}.kubeconfig"
        if not path.exists():
            pki.certificate(name, name, group)
            pki.kubeconfig(path, name)
        return path

    @cached_property
    def _api(self) -> Api:
        return Api()
