"""Services that KubeRay runs: made, told of and ended by the API server; what gangs do is asked in the head's pod.

A RayService is a run like those of the other engines on Kubernetes, but its pods are Ray's: which of them is which node
only the service's door knows (``tell``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from allranks.engines.engine import LogFilter, LogLine
from allranks.engines.kubernetes import client as api
from allranks.engines.kubernetes import conditions, delivery, kept, rights, state
from allranks.engines.kubernetes.cancel import End
from allranks.engines.kubernetes.client import Client, Object
from allranks.engines.kubernetes.control import KubernetesEngine
from allranks.engines.kubernetes.kinds import EVENT, POD, Kind
from allranks.engines.kubernetes.pods import Pod
from allranks.engines.kubernetes.reasons import Events, short, why_waiting
from allranks.engines.kubernetes.refusals import Missing, Refused
from allranks.engines.ray import lines
from allranks.engines.ray.telling import Telling, ask, telling
from allranks.engines.silence import Silence
from allranks.errors import EngineError
from allranks.node.status import Status

if TYPE_CHECKING:
    from allranks.engines.engine import Plan

KIND = Kind("ray.io/v1", "RayService", "rayservices", "KubeRay", "https://github.com/ray-project/kuberay")
TYPE, CLUSTER = "ray.io/node-type", "ray.io/cluster"
"""KubeRay's labels of a pod: head or worker, and of which RayCluster."""
GONE_WITHIN = 120.0
"""Seconds for all pods to be gone."""
LOOK = 1.0
"""Seconds between two looks of who follows a service."""


@dataclass(frozen=True)
class RayServices(KubernetesEngine):
    """As its base, by other ways to see and to end."""

    def submit(self, plan: Plan, *, detach: bool) -> RayServiceRun:
        client = self.connect()
        main = self.create(client, plan)
        self._keep(client, [main])
        return RayServiceRun(self, client, main)

    def role(self, *, force_delete: bool = False) -> dict[str, Any]:
        own, *others = rights.rights([self.kind])
        named = (rights.POD_EXEC, EVENT)
        space = "default" if api.why_not() else self.connect().namespace
        pods = replace(next(one for one in others if one.kind == POD), why="status: why a pod is not there; cancel")
        return rights.role("allranks", space, [own, pods, *(one for one in others if one.kind in named)])

    def answers(self, plan: Plan) -> bool:
        (document,) = plan.documents
        main = self.connect().get(KIND, plan.name, str(document["metadata"]["namespace"]))
        return _is_ready(main)

    def seen(self, client: Client, main: Object, seen: kept.Seen | None = None) -> Status:
        head = _head(main, pods := _pods(client, main))
        told, note = ask(client, str(main["metadata"]["name"]), head)
        return _noted(self.composed_of(client, main, pods, told), note)

    def composed_of(self, client: Client, main: Object, pods: Sequence[Pod], told: dict[str, Any] | None) -> Status:
        """The status, remembered for the day when the cluster has it no more."""
        status = compose(main, pods, _events(client, main, pods), told)
        kept.remember(client.access.context, main, status)
        return status

    def logs(self, name: str, wanted: LogFilter, *, follow: bool) -> Iterator[LogLine | None]:
        client, main = self.must_find(name)
        if follow:
            yield from _follow(RayServiceRun(self, client, main), wanted)
            return
        told, note = ask(client, name, _head(main, _pods(client, main)))
        if told is None:
            raise EngineError(f"the lines of {name} are with its Ray cluster; {note or 'its head is not there yet'}")
        found = list(lines.of(told["lines"]))
        newest = max((line.attempt for line in found), default=0)
        yield from (line for line in found if lines.is_wanted(line, wanted, newest))

    def end(self, client: Client, main: Object, *, reason: str, code: int) -> Status:
        pods = _pods(client, main)
        status = self.composed_of(client, main, pods, None)
        left = self.remove(client, main, _space(main), GONE_WITHIN)
        if left:
            names = ", ".join(str(pod["metadata"]["name"]) for pod in left[:10])
            raise EngineError(f"service {status.name}: {len(left)} pods do not go: {names}")
        if not status.is_over:
            End(reason, code).say(status)
        status.nodes, status.conditions = [], []
        kept.remember(client.access.context, main, status)
        return status

    def listed(self, client: Client, mains: Sequence[Object]) -> Sequence[Status]:
        return [compose(main, (), Events((), ""), None) for main in mains]


ENGINE = RayServices(name="ray", summary="RayService of KubeRay", kind=KIND, head=())


def compose(main: Object, pods: Sequence[Pod], events: Events, told: dict[str, Any] | None) -> Status:
    """How a service stands by its object, its pods and what its door has told, where it could be asked. Pure."""
    status = Status.from_json(told["status"]) if told else state.listed(ENGINE.name, main)
    status.started = str(main["metadata"].get("creationTimestamp", ""))
    status.conditions = conditions.shown(main)
    addresses = {pod.name: pod.address for pod in pods}  # a node's own name is its pod's
    for node in status.nodes:
        node.address = addresses.get(node.name, node.address)
    missing = [(pod, why) for pod in pods if (why := why_waiting(pod, events))]
    if told is None:
        status.phase = "starting" if any(pod.is_running for pod in pods) else "pending"
        status.nodes, status.reason = [], _serves_word(main) or _not_ready(main)  # which pod is which nobody knows
        if _is_ready(main):
            status.phase, status.reason = "running", ""
    if missing and not status.is_over:
        (pod, why), there = missing[0], len(pods) - len(missing)
        where = f"{there} of {len(pods)} pods there; {pod.name}: {why}"
        status.reason = "; ".join(filter(None, (status.reason if told else "", where)))
    return status


def _noted(status: Status, note: str) -> Status:
    return replace(status, notes=[*status.notes, note]) if note else status


def _not_ready(main: Object) -> str:
    """Why it is not ready, in the words of the RayService's own condition."""
    for one in (main.get("status") or {}).get("conditions") or ():
        if one.get("type") == "Ready" and one.get("status") == "False":
            return short(": ".join(filter(None, (str(one.get("reason", "")), str(one.get("message", ""))))))
    return "KubeRay has said nothing of it yet: does its operator run?"


def _serves_word(main: Object) -> str:
    """Why the service is not placed, as Serve has told KubeRay."""
    status = main.get("status") or {}
    for which in ("pendingServiceStatus", "activeServiceStatus"):
        for one in ((status.get(which) or {}).get("applicationStatuses") or {}).values():
            said = [each.get("message") for each in (one.get("serveDeploymentStatuses") or {}).values()]
            if word := next(filter(None, [*said, one.get("message")]), ""):
                return short(str(word).splitlines()[0])
    return ""


def _is_ready(main: Object) -> bool:
    return any(one.startswith("Ready") for one in conditions.shown(main))


def _space(main: Object) -> str:
    return str(main["metadata"]["namespace"])


def _pods(client: Client, main: Object) -> list[Pod]:
    found = client.list(POD, _space(main), labels=f"{delivery.RUN}={main['metadata']['name']}")
    return sorted((Pod(0, raw) for raw in found), key=lambda pod: pod.name)


def _events(client: Client, main: Object, pods: Sequence[Pod]) -> Events:
    name = str(main["metadata"]["name"])
    if pods and all(pod.is_running for pod in pods):
        return Events((), name)
    try:
        return Events(client.list(EVENT, _space(main), fields="type=Warning"), name)
    except Refused:
        return Events((), name)  # an optional right


def _head(main: Object, pods: Sequence[Pod]) -> Pod | None:
    """The head of the cluster that serves, or of the newest one while none does."""
    status = main.get("status") or {}
    active = (status.get("activeServiceStatus") or {}).get("rayClusterName")
    heads = [pod for pod in pods if pod.raw["metadata"]["labels"].get(TYPE) == "head" and pod.is_running]
    serving = [pod for pod in heads if pod.raw["metadata"]["labels"].get(CLUSTER) == active]
    return max(serving or heads, key=lambda pod: pod.created, default=None)


# Who follows one


class RayServiceRun:
    """A service in a cluster, watched from here. It does not hang on this process."""

    def __init__(self, engine: RayServices, client: Client, main: Object) -> None:
        self.name, self.lines = str(main["metadata"]["name"]), LogFilter(since=0)
        self._engine, self._client, self._main = engine, client, main
        self._telling: Telling | None = None
        self._looked, self._silence = 0.0, Silence(self.name)
        self._status = compose(main, (), Events((), ""), None)

    @property
    def telling(self) -> Telling:
        """Started when it is first asked for: who detaches at once needs none."""
        if self._telling is None:
            self._telling = telling(self._client, self._main)
        return self._telling

    def status(self) -> Status:
        """How it stood at the newest look. Raises EngineError when there was none for too long."""
        if time.monotonic() - self._looked > LOOK:
            try:
                self._look()
                self._silence.heard()
            except EngineError as error:  # a refusal too: an API server that has just started knows no rights yet
                self._silence.goes_on(error)
                if self._silence.is_too_long:
                    raise
            finally:
                self._looked = time.monotonic()
        return replace(self._status, notes=[*self._status.notes, *self._silence.notes])

    def _look(self) -> None:
        try:
            fresh = self._client.get(KIND, self.name, _space(self._main))
        except Missing:
            fresh = {"metadata": {"uid": ""}}
        if fresh["metadata"]["uid"] != self._main["metadata"]["uid"]:
            if not self._status.is_over:
                self._status.end("cancelled", "its RayService was deleted from the cluster", 143)
            return
        self._main = {**self._main, **fresh}
        pods = _pods(self._client, self._main)
        told = self.telling.asked(_head(self._main, pods))
        status = self._engine.composed_of(self._client, self._main, pods, told)
        self._status = _noted(status, self.telling.note)

    def cancel(self, *, reason: str, code: int) -> None:
        self._engine.cancel(self.name, reason=reason, code=code)

    def detach(self) -> None:
        """It goes on without us; nobody listens any more."""
        if self._telling is not None:
            self._telling.close()

    def wait(self, timeout: float) -> bool:
        """Who has cancelled it has waited."""
        self.detach()
        return self.status().is_over


def _follow(run: RayServiceRun, wanted: LogFilter) -> Iterator[LogLine | None]:
    """What is there and what comes, until the service is over."""
    newest, at = 0, 0
    try:
        while True:
            over = run.status().is_over
            newest = newest or run.status().attempt
            found, at = run.telling.since(at)
            yield from (line for line in lines.of(found) if lines.is_wanted(line, wanted, newest))
            if over and not found:
                return
            yield None
            time.sleep(LOOK / 5)
    finally:
        run.detach()
