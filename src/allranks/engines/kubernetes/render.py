"""From a job and a cluster to a Plan: what the operators' engines have in common around their own object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from allranks.engines import honoured
from allranks.engines.engine import Plan
from allranks.engines.kubernetes import delivery, free
from allranks.engines.kubernetes.admission import Admission, admission
from allranks.engines.kubernetes.manifest import Explained, merge, without_nothing
from allranks.errors import SpecError

if TYPE_CHECKING:
    from allranks.engines.kubernetes.cluster import Cluster
    from allranks.spec.job import Job


HELD_BACK = "until Kueue admits it (schedule.queue)"
"""Why an object is made suspended."""


def namespace_of(job: Job, cluster: Cluster) -> str:
    """The run's namespace."""
    return job.schedule.namespace or cluster.namespace


def admitted(job: Job, engine: str, cluster: Cluster) -> Admission:
    """Who lets the job in, and what for that is to be set. Raises SpecError."""
    return admission(job, engine, cluster, namespace_of(job, cluster))


def beside(
    job: Job, engine: str, namespace: str, names: Sequence[str], group: dict[str, Any] | None, **more: Any
) -> list[dict[str, Any]]:
    """What is made before the engine's own object: the agents' files, what lets them ask, and the PodGroup, if any.

    ``names`` are what the nodes find each other by, node 0's first; ``more`` the agents are told. Raises SpecError.
    """
    files = delivery.documents(job, engine, namespace, names, **more)
    return [*files, *free.documents(job, engine, namespace), *([group] if group else [])]


def plan(
    job: Job,
    engine: str,
    documents: Sequence[dict[str, Any]],
    *,
    why_not: Mapping[str, str] = {},
    notes: Iterable[str] = (),
) -> Plan:
    """The plan of these documents, the engine's own object last, with ``engines.<engine>.manifest`` merged into it.

    A manifest that names another ``kind`` is merged into the document of that kind. Raises SpecError where there is
    none, or where the merge would hide the run from allranks.
    """
    from allranks.spec.write import dump

    _note_size(job, documents[-1])
    merged = _merged(job, engine, list(documents))
    told = (*honoured.notes(job, engine, why_not, {f"engines.{engine}"}), *notes, *_for_mpirun(job), *free.notes(job))
    return Plan(job.name, engine, tuple(merged), told, dump(job))


def _note_size(job: Job, main: dict[str, Any]) -> None:
    main["metadata"]["annotations"] = {**main["metadata"].get("annotations", {}), **delivery.noted(job)}


def _for_mpirun(job: Job) -> Iterator[str]:
    if job.launcher == "mpirun":
        yield "launcher mpirun: the image needs Open MPI's mpirun, and OpenSSH's ssh and sshd"


def _merged(job: Job, engine: str, documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    patch = getattr(job.engines, engine).manifest
    if not patch:
        return documents
    kinds = [document["kind"] for document in documents]
    kind = patch.get("kind", kinds[-1])
    if kind not in kinds:
        raise SpecError(f"engines.{engine}.manifest: kind {kind} is not in the plan; it has {', '.join(kinds)}")
    number = kinds.index(kind)
    before, documents[number] = documents[number], merge(documents[number], patch)
    _must_be_findable(engine, before["metadata"], documents[number].get("metadata"))
    return documents


def _must_be_findable(engine: str, before: dict[str, Any], after: Any) -> None:
    labels = after.get("labels") if isinstance(after, dict) else None
    kept = isinstance(labels, dict) and all(labels.get(name) == before["labels"][name] for name in before["labels"])
    if not kept or (after["name"], after["namespace"]) != (before["name"], before["namespace"]):
        ours = ", ".join(before["labels"])
        raise SpecError(
            f"engines.{engine}.manifest changes name, namespace or labels ({ours}) by which allranks finds the run; "
            "set the spec's name and schedule.namespace instead"
        )


def main_object(
    job: Job, engine: str, admission: Admission, namespace: str, version: str, kind: str, spec: dict[str, Any]
) -> dict[str, Any]:
    """The engine's own object of this spec."""
    metadata = delivery.metadata(job, engine, namespace, labels=admission.labels, annotations=admission.annotations)
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def run_policy(job: Job, admission: Admission, **more: Any) -> Explained:
    """What both of Kubeflow's older operators call runPolicy. ``more`` comes first."""
    return without_nothing(
        {
            **more,
            "cleanPodPolicy": job.failure.clean.capitalize(),
            "ttlSecondsAfterFinished": ttl(job),
            "suspend": admission.suspend or None,
        },
        cleanPodPolicy="failure.clean",
        ttlSecondsAfterFinished="failure.ttl",
        suspend=HELD_BACK,
    )


def ttl(job: Job) -> int | None:
    """Seconds that a finished run is kept."""
    return int(job.failure.ttl.seconds) if job.failure.ttl is not None else None


def main_document(plan: Plan) -> dict[str, Any]:
    """The engine's own object, whose deletion takes all else of the run with it."""
    return plan.documents[-1]


def headless(job: Job, engine: str, namespace: str, **selector: str) -> dict[str, Any]:
    """A Service that gives the pods names, before they are ready too: they must find each other to become it."""
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": delivery.metadata(job, engine, namespace),
        "spec": Explained(
            {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {delivery.RUN: job.name, **selector}},
            clusterIP="headless: one name for each pod, no address of its own",
        ),
    }  # fmt: skip
