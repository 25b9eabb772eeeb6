"""Who lets all nodes of a gang in together, and what that one needs to see: labels, annotations, a PodGroup.

Kueue admits the whole object and needs it suspended; Volcano and scheduler-plugins' coscheduling bind the pods of a
PodGroup together; KAI makes its own groups from the pods' owner. ``gang: auto`` takes what the cluster has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from allranks.engines.kubernetes import delivery
from allranks.errors import SpecError

if TYPE_CHECKING:
    from allranks.engines.kubernetes.cluster import Cluster
    from allranks.spec.job import Job

SCHEDULERS = {"volcano": "volcano", "coscheduling": "scheduler-plugins-scheduler", "kai": "kai-scheduler"}
"""The name by which each one's scheduler is installed unless told otherwise; ``pod: {schedulerName: ...}`` wins."""


@dataclass(frozen=True)
class Admission:
    """``labels`` and ``annotations`` are of the engine's object, ``pod_...`` of its pods.

    ``places`` says that it sees to ``schedule.topology`` itself. ``group`` is the PodGroup, for engines that make none.
    """

    by: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    pod_labels: dict[str, str] = field(default_factory=dict)
    pod_annotations: dict[str, str] = field(default_factory=dict)
    scheduler: str = ""
    suspend: bool = False
    places: bool = False
    group: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()


def admission(job: Job, engine: str, cluster: Cluster, namespace: str) -> Admission:
    """What this job needs for it. Raises SpecError where a queue must be named, and none is."""
    by, notes = _by(job, cluster)
    queue = job.schedule.queue
    if by in ("kueue", "kai") and not queue:
        raise SpecError(f"schedule.gang {by}: it admits only what names its queue; set schedule.queue")
    if by == "kueue":
        return _kueue(job, str(queue), notes)
    if by == "volcano":
        spec = {"minMember": job.nodes, **({"queue": queue} if queue else {})}
        group = _group(job, engine, namespace, "scheduling.volcano.sh/v1beta1", spec)
        mark = {"scheduling.k8s.io/group-name": delivery.name_of(job.name)}
        return Admission(by, scheduler=SCHEDULERS[by], pod_annotations=mark, group=group, notes=notes)
    if by == "coscheduling":
        if queue:
            notes = (*notes, "schedule.queue: coscheduling has no queues; it is not used")
        group = _group(job, engine, namespace, "scheduling.x-k8s.io/v1alpha1", {"minMember": job.nodes})
        mark = {"scheduling.x-k8s.io/pod-group": delivery.name_of(job.name)}
        return Admission(by, scheduler=SCHEDULERS[by], pod_labels=mark, group=group, notes=notes)
    if by == "kai":
        mark = {"kai.scheduler/queue": str(queue)}
        return Admission(by, labels=mark, pod_labels=mark, scheduler=SCHEDULERS[by], notes=notes)
    return Admission(notes=notes)


def _by(job: Job, cluster: Cluster) -> tuple[str, tuple[str, ...]]:
    asked, queue = job.schedule.gang, job.schedule.queue
    if asked == "off":
        return "", (("schedule.queue: not used, because schedule.gang is off",) if queue else ())
    if asked != "auto":
        return asked, ()
    if cluster.gang in ("", "kueue", "kai") and not queue:
        return "", ()  # these two leave alone what names no queue
    if cluster.gang:
        return cluster.gang, ()
    return "kueue", (f"schedule.queue {queue}: taken for one of Kueue; schedule.gang says otherwise",)


def _kueue(job: Job, queue: str, notes: tuple[str, ...]) -> Admission:
    topology, level = job.schedule.topology, {}
    if topology:
        how = "required" if topology.required else "preferred"
        level = {f"kueue.x-k8s.io/podset-{how}-topology": str(topology.required or topology.preferred)}
    return Admission(
        "kueue",
        labels={"kueue.x-k8s.io/queue-name": queue},
        pod_annotations=level,
        suspend=True,
        places=True,
        notes=notes,
    )


def _group(job: Job, engine: str, namespace: str, version: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Not named as the run: an operator that makes groups itself takes that name, and minds somebody else's."""
    metadata = delivery.metadata(job, engine, namespace, delivery.name_of(job.name))
    return {"apiVersion": version, "kind": "PodGroup", "metadata": metadata, "spec": spec}
