"""How the agent, its plan and its secret get into a container: a ConfigMap and a Secret, both named ``RUN-allranks``.

They are one volume, so the image needs nothing of ours. What changes is in another one, an emptyDir: with it the
container's own file system may be read-only. The Secret's value is made when the run is submitted; a plan never has it.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.engines import told
from allranks.engines.kubernetes.manifest import Explained
from allranks.errors import SpecError
from allranks.node import bundle
from allranks.node.free import LABEL

if TYPE_CHECKING:
    from allranks.spec.job import Job

PREFIX = "allranks.dev"
RUN, ENGINE = LABEL, f"{PREFIX}/engine"
"""Labels of everything that belongs to a run, its pods included: one call by RUN finds it all."""
SERVICE = f"{PREFIX}/service"
"""Label of all that belongs to a service, its gangs' pods included."""
SUBMIT = f"{PREFIX}/submit"
"""Annotation of a run's ConfigMap: a random word of the client that made it."""
VERSION = f"{PREFIX}/version"
"""Annotation: the allranks that made it."""

SIZE, RESTARTS, START = f"{PREFIX}/size", f"{PREFIX}/restarts", f"{PREFIX}/start-timeout"
"""Annotations of the engine's object: nodes x ranks of each (``2x8``), and ``failure``'s restarts and start_timeout."""

CODE, STATE = "/allranks", "/run/allranks"
"""Where the agent's file, its plan and the secret are in a container, and where its own emptyDir is."""
AGENT, PLAN, SECRET, SPEC = "agent.pyz", "plan.json", "secret", "spec.yaml"
FILES, OWN_FILES = f"{PREFIX}/files", f"{CODE}/{AGENT}:{STATE}/state/plan.json"
"""Annotation of a pod whose agent and laid out plan are elsewhere; and where they are otherwise."""
COMMAND = ("python3", f"{CODE}/{AGENT}", "init", f"{CODE}/{PLAN}")
PORT = 29490
"""Where node 0's agent listens: nothing else of ours or of torch's has this port by default."""
HEARTBEAT, LEASE = 2.0, 10.0
"""Seconds; a network that is cut for five of them disturbs nobody."""
LARGEST = 2**20
"""Bytes of all values of a ConfigMap (k8s.io/api/core/v1, MaxSecretSize is the same)."""
TERMINATION = "/dev/termination-log"


def name_of(run: str) -> str:
    """The name of a run's ConfigMap and of its Secret."""
    return f"{run}-allranks"


def labels(job: Job, engine: str) -> dict[str, str]:
    """What marks every object of a run, and every pod."""
    return {RUN: job.name, ENGINE: engine}


def noted(job: Job) -> dict[str, str]:
    """So that `list` and `status` know its size of an object alone, whatever its engine calls it."""
    start = f"{job.failure.start_timeout.seconds:g}"
    return {SIZE: f"{job.nodes}x{job.ranks}", RESTARTS: str(job.failure.restarts), START: start}


def metadata(job: Job, engine: str, namespace: str, name: str = "", **more: Any) -> dict[str, Any]:
    """Metadata of an object of this run; ``name`` is the run's own unless given. ``labels`` are added to ours."""
    found = {
        "name": name or job.name,
        "namespace": namespace,
        "labels": {**labels(job, engine), **more.pop("labels", {})},
    }
    return {**found, **{key: value for key, value in more.items() if value}}


def documents(job: Job, engine: str, namespace: str, names: Sequence[str], **more: Any) -> list[dict[str, Any]]:
    """The ConfigMap and the Secret of a run. ``names`` are what its nodes find each other by, node 0's first.

    ``more`` are further fields of what the agents are told. Raises SpecError where that is more than a ConfigMap holds.
    """
    plan = json.dumps({**gang(job, engine, names), **more}, indent=1)
    _must_fit(job, len(plan) + len(_spec(job).encode()) + len(encoded_bundle()) * 3 // 4)
    meta = metadata(job, engine, namespace, name_of(job.name))
    agent = Explained({AGENT: encoded_bundle()}, **{AGENT: "the agent: one file, for any Python 3.8 or newer"})
    config = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "immutable": True,
        "data": {PLAN: plan + "\n", SPEC: _spec(job)}, "binaryData": agent,
    }  # fmt: skip
    secret = Explained(
        {"apiVersion": "v1", "kind": "Secret", "metadata": dict(meta), "immutable": True, "type": "Opaque"},
        type=f"its one key, {SECRET}, is made when the run is submitted",
    )
    return [config, secret]


def _must_fit(job: Job, size: int) -> None:
    if size <= LARGEST:
        return
    names = "the names of all nodes (launcher: mpirun), and " if job.launcher == "mpirun" else ""
    raise SpecError(
        f"the agents are told {names}the words of run, env and the rest by a ConfigMap, which holds {LARGEST} bytes; "
        f"with the agent itself they are {size}: say less, or take fewer nodes"
    )


def gang(job: Job, engine: str, names: Sequence[str]) -> dict[str, Any]:
    """What the agents read. An empty ``workdir`` is the container's, a relative one starts from there.

    All the names are only for a launcher that must be told them; the agents need the coordinator's.
    """
    return {
        **told.agents(job, engine),
        "workdir": job.workdir or "",
        "coordinator": names[0],
        "port": PORT,
        "state": f"{STATE}/state",
        "cache": f"{STATE}/cache",
        "heartbeat": HEARTBEAT,
        "lease": LEASE,
        "rdma": job.network.rdma,
        "gpus": job.resources.gpus,
        "termination": TERMINATION,
        **({"force_delete": True} if job.failure.force_delete else {}),
        **({"hosts": list(names)} if job.launcher == "mpirun" else {}),
    }


@lru_cache(maxsize=1)
def encoded_bundle() -> str:
    """The agent's file in base64, as a ConfigMap holds it; 170 kB are 227."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, AGENT)
        bundle.build(str(path))
        return base64.b64encode(path.read_bytes()).decode()


def _spec(job: Job) -> str:
    from allranks.spec.write import dump

    return dump(job)


def volumes(run: str) -> list[dict[str, Any]]:
    """The two volumes of every pod."""
    name = name_of(run)
    items = [{"key": key, "path": key} for key in (AGENT, PLAN)]
    return [
        {"name": "allranks", "projected": {"sources": [
            {"configMap": {"name": name, "items": items}},
            {"secret": {"name": name}},
        ]}},
        Explained({"name": "allranks-state", "emptyDir": {}}, emptyDir="the run's record, its logs and TMPDIR"),
    ]  # fmt: skip


def mounts() -> list[dict[str, Any]]:
    """Where the container sees them."""
    return [
        {"name": "allranks", "mountPath": CODE, "readOnly": True},
        {"name": "allranks-state", "mountPath": STATE},
    ]
