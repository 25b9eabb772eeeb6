"""Specs that load, and will hurt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from allranks.lint.rule import WARNING, Found, Rule, Subject
from allranks.manifest.field import Field
from allranks.spec.job import Job

SPEC = ("spec",)
SPOT = re.compile(r"spot|preemptible|preempt", re.IGNORECASE)


@dataclass(frozen=True)
class SpecSubject(Subject):
    """A spec of ours, loaded."""

    job: Job | None = None


def spot_without_restarts(subject: Subject) -> Iterator[Found]:
    """Nodes that may be taken away, and no restart."""
    job = getattr(subject, "job", None)
    if job is None or job.failure.restarts:
        return
    keys = [one.key or "" for one in job.schedule.tolerations] + list(job.schedule.node_selector)
    if any(SPOT.search(key) for key in keys):
        at = subject.root.at("failure", "restarts")
        yield Found(at, "restarts: 0 on nodes that may be taken away", "write failure: {restarts: 3} or more")


def gpus_without_shm(subject: Subject) -> Iterator[Found]:
    """Several GPUs and the 64 MB of /dev/shm that containers have."""
    job = getattr(subject, "job", None)
    if job is not None and job.image and job.resources.gpus > 1 and job.resources.shm is None:
        at: Field = subject.root["resources"]
        yield Found(at, f"{job.resources.gpus} GPUs and no shm", "write resources: {shm: 16Gi}")


RULES = (
    Rule("spot-without-restarts", WARNING, SPEC, spot_without_restarts,
        "The first node that is taken away ends the run."),
    Rule("gpus-without-shm", WARNING, SPEC, gpus_without_shm,
        "/dev/shm has 64 MB: NCCL fails with 'No space left on device', data loaders with bus errors."),
)  # fmt: skip
