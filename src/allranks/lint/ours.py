"""Specs that load, and will hurt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from allranks.lint.rule import WARNING, Found, Rule, Subject
from allranks.spec.service import Service, Spec

SPEC = ("spec",)
SPOT = re.compile(r"spot|preemptible|preempt", re.IGNORECASE)


@dataclass(frozen=True)
class SpecSubject(Subject):
    """A spec of ours, loaded: a job's or a service's."""

    loaded: Spec | None = None


def _spec(subject: Subject) -> Spec | None:
    return subject.loaded if isinstance(subject, SpecSubject) else None


def spot_without_restarts(subject: Subject) -> Iterator[Found]:
    """Nodes that may be taken away, and no restart."""
    job = _spec(subject)
    if job is None or job.failure.restarts:
        return
    keys = [one.key or "" for one in job.schedule.tolerations] + list(job.schedule.node_selector)
    if any(SPOT.search(key) for key in keys):
        at = subject.root.at("failure", "restarts")
        yield Found(at, "restarts: 0 on nodes that may be taken away", "write failure: {restarts: 3} or more")


def gpus_without_shm(subject: Subject) -> Iterator[Found]:
    """Several GPUs and the 64 MB of /dev/shm that containers have."""
    job = _spec(subject)
    if job is not None and job.image and job.resources.gpus > 1 and job.resources.shm is None:
        yield Found(subject.root["resources"], f"{job.resources.gpus} GPUs and no shm", "write resources: {shm: 16Gi}")


def service_without_restarts(subject: Subject) -> Iterator[Found]:
    """A service that the first fault ends."""
    service = _spec(subject)
    if isinstance(service, Service) and not service.failure.restarts:
        at = subject.root.at("failure", "restarts")
        yield Found(at, "restarts: 0 in a service", "write failure: {restarts: 100}; a service that is well uses none")


def service_with_deadline(subject: Subject) -> Iterator[Found]:
    """A service that ends although nothing is wrong."""
    service = _spec(subject)
    if isinstance(service, Service) and service.failure.deadline is not None:
        at = subject.root.at("failure", "deadline")
        yield Found(at, f"deadline: {service.failure.deadline} in a service", "leave it out; 'allranks cancel' ends it")


def open_to_all(subject: Subject) -> Iterator[Found]:
    """A model that other machines reach, and no key."""
    service = _spec(subject)
    if not isinstance(service, Service) or service.model is None or service.api_key is not None:
        return
    here = service.host is None or service.host in ("localhost", "::1") or service.host.startswith("127.")
    if service.image or not here:
        at = subject.root["host"] if not here else subject.root["model"]
        yield Found(at, "other machines reach it, and api_key is not set", "write api_key: {secret: NAME/KEY}, or "
                    "{env: NAME} on this machine")  # fmt: skip


RULES = (
    Rule("spot-without-restarts", WARNING, SPEC, spot_without_restarts,
        "The first node that is taken away ends the run."),
    Rule("service-without-restarts", WARNING, SPEC, service_without_restarts,
        "One lost rank, and nobody is served until somebody looks."),
    Rule("service-with-deadline", WARNING, SPEC, service_with_deadline,
        "It ends when that time is over, in the midst of requests."),
    Rule("open-to-all", WARNING, SPEC, open_to_all,
        "Whoever reaches the port uses the GPUs, and is charged to nobody."),
    Rule("gpus-without-shm", WARNING, SPEC, gpus_without_shm,
        "/dev/shm has 64 MB: NCCL fails with 'No space left on device', data loaders with bus errors."),
)  # fmt: skip
