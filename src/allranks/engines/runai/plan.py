"""What the engine runai makes of a job: a ConfigMap, a Secret, and the ``runai`` command line that submits it.

A distributed workload of Run:ai is a PyTorchJob with as many workers as nodes, less the master. The same, as the body
of a request to its REST API, is in the plan too. Version 1 of the command line mounts no ConfigMap, but can give a
container variables out of a Secret: there the agent comes in pieces, which the command puts together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from allranks.engines.kubernetes import delivery, pod, render
from allranks.engines.kubernetes.manifest import Explained
from allranks.engines.pytorchjob import plan as pytorchjob
from allranks.engines.runai import command_line
from allranks.engines.runai.body import body
from allranks.errors import SpecError

if TYPE_CHECKING:
    from allranks.engines.engine import Plan
    from allranks.engines.kubernetes.cluster import Cluster
    from allranks.spec.job import Job

ENGINE = "runai"
PIECE = 96 * 1024
"""Characters of one variable; the kernel takes at most 128 KiB."""
WHY_NOT = {
    "schedule.queue": "the project is the queue (engines.runai.project)",
    "schedule.node_selector": "Run:ai chooses hosts by node pools and node types",
    "schedule": "Run:ai's scheduler has its own way of it",
    "pod": "Run:ai makes the pods",
    "container": "Run:ai makes the containers",
}


def plan(job: Job, cluster: Cluster) -> Plan:
    """Render the job. Raises SpecError for what cannot be."""
    pod.must_have_image(job, ENGINE)
    if job.env_from:
        raise SpecError("env_from: Run:ai gives a container single keys of a Secret, not all of them")
    if commas := list(command_line.with_commas(job)):
        raise SpecError(f"{', '.join(commas)}: the command line of runai takes no comma there")
    namespace = _namespace(job, cluster)
    config, secret = delivery.documents(
        job, ENGINE, namespace, pytorchjob.names(job),
        state=f"{command_line.STATE}/state", cache=f"{command_line.STATE}/cache",
        closes=True, secret=f"{command_line.SECRET_PATH}/{delivery.SECRET}" if cluster.runai == 2 else "",
    )  # fmt: skip
    pieces = _pieces() if cluster.runai == 1 else []
    mounted = [_in_pieces(config, secret, pieces)] if pieces else [config, secret]
    argv = command_line.argv(job, cluster.runai, len(pieces))
    submit = Explained(
        {
            "apiVersion": f"{delivery.PREFIX}/v1",
            "kind": "RunaiSubmit",
            "metadata": delivery.metadata(job, ENGINE, namespace),
            "argv": argv,
            "line": command_line.line(argv),
            **({"body": body(job)} if cluster.runai == 2 else {}),
        },
        argv="what is run",
        line="the same, for a shell",
        body="the same, for POST /api/v1/workloads/distributed; projectId and clusterId are the installation's",
    )
    return render.plan(job, ENGINE, [*mounted, submit], why_not=_why_not(cluster), notes=_notes(job, cluster))


def _namespace(job: Job, cluster: Cluster) -> str:
    """Run:ai's own name for a project's namespace, unless the job knows better."""
    project = job.engines.runai.project
    return job.schedule.namespace or (f"runai-{project}" if project else cluster.namespace)


def _pieces() -> list[str]:
    whole = delivery.encoded_bundle()
    return [whole[start : start + PIECE] for start in range(0, len(whole), PIECE)]


def _in_pieces(config: dict[str, Any], secret: dict[str, Any], pieces: Sequence[str]) -> dict[str, Any]:
    """One Secret with all that the container needs; a variable cannot be filled from a ConfigMap there."""
    agent = {f"agent-{number}": piece for number, piece in enumerate(pieces)}
    why = dict.fromkeys(agent, "a piece of the agent")
    data = Explained({delivery.PLAN: config["data"][delivery.PLAN], **agent}, **why)
    return Explained({**secret, "stringData": data}, **getattr(secret, "why", {}))


def _why_not(cluster: Cluster) -> dict[str, str]:
    why = dict(WHY_NOT)
    if cluster.runai == 1:
        why["failure.ttl"] = "version 1 of runai removes only MPI workloads by time"
        why["schedule.priority"] = "version 1 of runai has priorities only by --interactive"
    return why


def _notes(job: Job, cluster: Cluster) -> Iterator[str]:
    if job.resources.shm:
        yield f"resources.shm {job.resources.shm}: Run:ai has only --large-shm, whose size is the cluster's"
    if any(volume.claim and volume.read_only for volume in job.volumes):
        yield "volumes: Run:ai mounts a claim for writing, whatever read_only says"
    if job.engines.runai.interactive and cluster.runai == 2:
        yield "engines.runai.interactive: version 2 of runai has interactive workspaces of one pod only; not used"
