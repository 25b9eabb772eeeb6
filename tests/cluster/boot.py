"""Up and down: the order of things."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.cluster import operators, pki, plane, world
from tests.cluster.api import Api
from tests.cluster.components import Component
from tests.cluster.components import operators as all_operators
from tests.cluster.images import kinds as images
from tests.cluster.layout import HOME, LOG, MOUNTS, NODES, READY, RUN
from tests.cluster.node import Node
from tests.cluster.node_config import write_base_specs
from tests.cluster.pause import archive
from tests.cluster.processes import wait

Say = Callable[[str], None]


def up(count: int, trainer: str, say: Say) -> None:
    """Boot ``count`` nodes with all operators; what a boot before this one has left must be gone."""
    made = images.prepare(HOME / "images", Path(sys.prefix))
    for line in made.missing:
        say(f"NOT AVAILABLE: {line}")
    began = time.monotonic()
    names = [f"n{number}" for number in range(1, count + 1)]
    for folder in (RUN, LOG, NODES):
        folder.mkdir(parents=True)
    RUN.chmod(0o711)
    (RUN / "resolv.conf").touch()
    pki.make(names)
    world.start(names)
    plane.start_etcd()
    plane.start_apiserver()
    write_base_specs({**{str(path): path for path in MOUNTS}, **made.mounts})
    archives = [archive(), *made.tars]
    with ThreadPoolExecutor(count + 1) as pool:
        booted = [pool.submit(_boot, Node(name), names, archives) for name in names]
        api = Api()
        wait("the API server", lambda: api.call("/readyz") == "ok", 120)
        say(f"{time.monotonic() - began:5.1f} s  the API server is up")
        plane.start_controllers()
        _start_operators(api, all_operators(trainer), began, say)
        for node in booted:
            node.result()
    wait(f"{count} nodes to be Ready", lambda: len(ready_nodes(api)) == count, 120)
    _settle(api)
    seconds = time.monotonic() - began
    READY.write_text(json.dumps({"trainer": trainer, "nodes": names, "seconds": round(seconds, 1)}))
    say(f"{seconds:5.1f} s  {count} nodes are Ready and all operators are well")


def down() -> None:
    """End it and remove all that it made outside what was built."""
    world.stop()


def ready_nodes(api: Api) -> list[str]:
    """The nodes that the API server holds to be Ready."""
    return [
        node["metadata"]["name"]
        for node in api.call("/api/v1/nodes")["items"]
        if any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])
    ]


def _boot(node: Node, names: list[str], images: list[Path]) -> None:
    node.configure()
    node.boot(names, images)


def _start_operators(api: Api, chosen: Sequence[Component], began: float, say: Say) -> None:
    hooks = operators.install(api, chosen)
    say(f"{time.monotonic() - began:5.1f} s  the operators' kinds are served")
    for operator in chosen:
        operators.start(operator)
    operators.wait_until_well(chosen)
    operators.hook(api, hooks)


def _settle(api: Api) -> None:
    """What the first pod of a test would otherwise fall over."""
    plain = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "plain"}, "handler": "plain"}
    api.call("/apis/node.k8s.io/v1/runtimeclasses", plain)
    wait("the default service account", lambda: api.call("/api/v1/namespaces/default/serviceaccounts/default"), 60)
    wait("cluster DNS", dns, 60)


def dns() -> bool:
    """Whether CoreDNS answers."""
    import urllib.request

    from tests.cluster.layout import CONTROL_IP

    with urllib.request.urlopen(f"http://{CONTROL_IP}:8181/ready", timeout=2) as answer:
        return bool(answer.status == 200)
