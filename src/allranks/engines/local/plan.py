"""What the local engine makes of a job: one document, the very plan that its agents read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks import engines
from allranks.engines import honoured, told
from allranks.engines.engine import Plan
from allranks.engines.local import program
from allranks.engines.local.rundir import cache_home, runs_home
from allranks.errors import EngineError, SpecError
from allranks.node.launch import mpirun

if TYPE_CHECKING:
    from allranks.spec.job import Job

MOST_RANKS = 4096
"""Ranks on one machine; more is a typing error, or a job for a cluster."""

WHY_NOT = {
    "image": "ranks are processes of this machine and see what is installed here",
    "env_from": "there are no secrets or ConfigMaps on this machine; the ranks get your shell's environment",
    "resources": "nothing is reserved or limited on this machine",
    "resources.gpus": "no GPU is reserved on this machine; it stands for ranks_per_node where that is left out",
    "network": "all ranks are on this machine",
    "network.rdma": "all ranks are on this machine",
    "volumes": "the ranks see this machine's own files",
    "schedule": "nothing queues on this machine",
    "failure.clean": "a gang's processes always end with it",
    "failure.force_delete": "there are no pods on this machine",
    "failure.ttl": "the last runs of a name are kept until it is used again",
    "pod": "there are no pods on this machine",
    "container": "there are no containers on this machine",
}
"""Why this engine does not honour a field, by its path or the nearest one above it."""


def plan(job: Job, folder: Path, pretended: str = "") -> Plan:
    """Render the job for this machine. ``pretended`` is the engine whose pods the nodes pretend to be, if any.

    Raises SpecError when its command could not even start, EngineError when this machine lacks what its launcher
    needs, UsageError when nobody can pretend to be of that engine.
    """
    pods = _pods(job, pretended) if pretended else {}
    if job.world_size > MOST_RANKS:
        found = f"{job.nodes} nodes x {job.ranks} ranks are {job.world_size} processes"
        raise SpecError(f"{found}; engine local runs at most {MOST_RANKS} on this machine")
    workdir = _workdir(job, folder)
    env, notes = program.venv_first(job.env, job.argv)
    program.check(job.argv, workdir, env)
    why_not = mpirun.why_not(env.get("PATH", os.environ.get("PATH", os.defpath))) if job.launcher == "mpirun" else ""
    if why_not:
        raise EngineError(f"launcher mpirun: {why_not}")
    return Plan(
        name=job.name,
        engine="local",
        documents=({**_document(job, workdir, env), **pods},),
        notes=(*_unhonoured(job, pretended), *notes, *_crowded(job), *program.identity_notes(os.environ)),
        spec=_spec(job, workdir),
    )


def _document(job: Job, workdir: Path, env: dict[str, str]) -> dict[str, Any]:
    return {
        **told.agents(job, "local"),
        "env": env,
        "workdir": str(workdir),
        "coordinator": _address(0),
        "port": 0,
        "addresses": [_address(node) for node in range(job.nodes)],
        "state": str(runs_home() / job.name),
        "cache": str(cache_home()),
        **({"rdma": job.network.rdma} if job.network.rdma != "auto" and job.nodes > 1 else {}),
        "heartbeat": 1.0,
        "lease": 5.0,
    }


def _pods(job: Job, pretended: str) -> dict[str, Any]:
    pretend = engines.pretend(pretended)
    if job.launcher not in pretend.LAUNCHERS:
        allowed = ", ".join(pretend.LAUNCHERS)
        raise SpecError(f"launcher {job.launcher}: engine {pretended} does not have it; allowed: {allowed}")
    pods = pretend.pods(job, [_address(node) for node in range(job.nodes)])
    return {"identity": pretended, "pods": [pod.to_json() for pod in pods], "termination": "/dev/termination-log"}


def _address(node: int) -> str:
    """A loopback address of each node's own: 127.1.0.1 to 127.1.0.254, then 127.1.1.1 and so on."""
    high, low = divmod(node, 254)
    return f"127.1.{high}.{low + 1}"


def _workdir(job: Job, folder: Path) -> Path:
    """Where the ranks start; a relative one starts from the spec's own folder, so that a spec means one thing."""
    workdir = Path(os.path.abspath(folder / os.path.expanduser(job.workdir or "")))
    if not workdir.is_dir():
        what = "is not a folder" if workdir.exists() else "does not exist"
        raise SpecError(f"workdir {what}: {workdir}; engine local starts ranks in a folder of this machine")
    return workdir


def _spec(job: Job, workdir: Path) -> str:
    from allranks.spec.write import dump

    return dump(job.model_copy(update={"workdir": str(workdir)}))


# Notes: what was asked for and is not done


def _unhonoured(job: Job, pretended: str) -> Iterator[str]:
    settled = [*([f"engines.{pretended}"] if pretended else []), *(["network.rdma"] if job.nodes > 1 else [])]
    return honoured.notes(job, "local", WHY_NOT, settled)


def _crowded(job: Job) -> Iterator[str]:
    cores = len(os.sched_getaffinity(0))
    if job.world_size > 8 * cores:
        yield f"{job.world_size} ranks share {cores} cores of this machine"
