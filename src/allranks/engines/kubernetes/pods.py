"""The pods of a run as the API server tells of them: which node each one is, how it is doing, what it left behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from allranks.engines.kubernetes import delivery
from allranks.node import cause
from allranks.node.status import Status

Object = dict[str, Any]

NodeOf = Callable[[Object], "int | None"]
"""Which node a pod is, by what its operator has written on it; None for a pod that is none."""

INDEX = "batch.kubernetes.io/job-completion-index"
"""Label and annotation by which Kubernetes numbers the pods of an Indexed Job (the label from 1.28 on)."""


SPEAKER = -1
"""In place of a node: a pod that holds none, and in whose output the ranks' lines are (mpirun's)."""
LINGERS = 10.0
"""Seconds that a sidecar may take to see that the ranks have ended."""
QUEUEING = ("volcano", "kai-scheduler", "runai-scheduler")
"""Schedulers with queues: to them a pod that has no host yet is one that waits for its turn."""


@dataclass(frozen=True)
class Pod:
    """One pod of the gang. ``node`` is which node it is, or SPEAKER; ``raw`` the API server's object."""

    node: int
    raw: Object

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.raw["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        return str(self.raw["metadata"]["uid"])

    @property
    def created(self) -> str:
        return str(self.raw["metadata"].get("creationTimestamp", ""))

    @property
    def phase(self) -> str:
        """Kubernetes' own: Pending, Running, Succeeded, Failed, Unknown."""
        return str(self.status.get("phase", "Pending"))

    @property
    def status(self) -> Object:
        return self.raw.get("status") or {}

    @property
    def spec(self) -> Object:
        return self.raw.get("spec") or {}

    @property
    def address(self) -> str:
        return str(self.status.get("podIP", ""))

    @property
    def host(self) -> str:
        """The Kubernetes node that it is on; empty before it is scheduled."""
        return str(self.spec.get("nodeName", ""))

    @property
    def container(self) -> str:
        """The ranks' container's name."""
        return str(self.ranks["name"])

    @property
    def ranks(self) -> Object:
        """The ranks' container: the one that our files are in; else the first. Webhooks put others before it."""
        containers: list[Object] = self.spec["containers"]
        return next(filter(_has_agent, containers), containers[0])

    def agent(self, verb: str, *words: str) -> tuple[str, ...]:
        """The command in its container that has the agent do something."""
        noted = (self.raw["metadata"].get("annotations") or {}).get(delivery.FILES, delivery.OWN_FILES)
        file, _, plan = str(noted).partition(":")
        return ("python3", file, verb, plan, *words)

    @property
    def is_going(self) -> bool:
        """Whether it is being deleted."""
        return bool(self.raw["metadata"].get("deletionTimestamp"))

    @property
    def state(self) -> Object:
        """The ranks' container's state: one of waiting, running, terminated."""
        return self._container_status().get("state") or {}

    @property
    def last_state(self) -> Object:
        """How its container before this one ended, if there was one."""
        return self._container_status().get("lastState") or {}

    @property
    def lingering(self) -> Sequence[str]:
        """Its other containers that run LINGERS seconds after the ranks' container has ended."""
        ended = str((self.state.get("terminated") or {}).get("finishedAt") or "")
        if not ended or now() - moment(ended) < LINGERS:
            return ()
        found = self.status.get("containerStatuses") or ()
        return [str(one["name"]) for one in found if "running" in (one.get("state") or {})]

    @property
    def is_queued(self) -> bool:
        """Whether it waits for its turn: a gate is before its scheduling, or its scheduler has queues of its own."""
        scheduled = self.condition("PodScheduled")
        if self.host or scheduled.get("status") == "True":
            return False
        return scheduled.get("reason") == "SchedulingGated" or self.spec.get("schedulerName") in QUEUEING

    @property
    def is_running(self) -> bool:
        """Whether its agent can be asked."""
        return "running" in self.state and not self.is_gone

    @property
    def is_gone(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    def condition(self, kind: str) -> Object:
        """One of its conditions; empty when it does not have it."""
        return next((one for one in self.status.get("conditions") or () if one.get("type") == kind), {})

    def left(self) -> Iterator[Status]:
        """The records of the run that its containers left behind, the newest first."""
        for state in (self.state, self.last_state):
            message = (state.get("terminated") or {}).get("message", "")
            if record := read_record(message):
                yield record

    def _container_status(self) -> Object:
        found = self.status.get("containerStatuses") or ()
        return next((one for one in found if one.get("name") == self.container), {})


def _has_agent(container: Object) -> bool:
    return any(mount.get("mountPath") == delivery.CODE for mount in container.get("volumeMounts") or ())


def read_record(text: str) -> Status | None:
    """The run's record in a termination message or a command's output; None for any other text."""
    if not text.startswith("{"):
        return None
    try:
        return Status.from_json(json.loads(text))
    except (ValueError, TypeError, KeyError):
        return None


def of_job(pod: Object) -> int | None:
    """Which node a pod of an Indexed Job is."""
    metadata = pod["metadata"]
    found = (metadata.get("labels") or {}).get(INDEX) or (metadata.get("annotations") or {}).get(INDEX)
    return int(found) if found is not None else None


def by_node(found: Iterable[Object], node_of: NodeOf) -> dict[int, Pod]:
    """The pod that each node is now: of several the one that is not being deleted or over, else the newest."""
    chosen: dict[int, Pod] = {}
    for raw in found:
        node = node_of(raw)
        if node is not None:
            pod = Pod(node, raw)
            if node not in chosen or _rank(pod) > _rank(chosen[node]):
                chosen[node] = pod
    return chosen


def speakers(found: Iterable[Object], node_of: NodeOf) -> list[Pod]:
    """The pods of a run that are no node."""
    return [Pod(SPEAKER, raw) for raw in found if node_of(raw) is None]


def _rank(pod: Pod) -> tuple[bool, bool, str]:
    return not pod.is_going, not pod.is_gone, pod.created


def moment(text: str) -> float:
    """Seconds since 1970 of a time as Kubernetes writes it; 0 for none."""
    try:
        return cause.moment(text)
    except ValueError:
        return 0.0


def now() -> float:
    """Seconds since 1970."""
    return datetime.now(timezone.utc).timestamp()
