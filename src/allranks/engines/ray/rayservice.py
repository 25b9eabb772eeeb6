"""Services that KubeRay runs: made, told of and ended by the API server; what gangs do is asked in the head's pod.

A RayService is a run like those of the other engines on Kubernetes, but its pods are Ray's: which of them is which node
only the service's door knows (``tell``).
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from allranks.engines.engine import LogFilter, LogLine
from allranks.engines.kubernetes import client as api
from allranks.engines.kubernetes import conditions, delivery, exec, kept, rights, state
from allranks.engines.kubernetes.client import Client, Object
from allranks.engines.kubernetes.control import KubernetesEngine
from allranks.engines.kubernetes.kinds import EVENT, POD, Kind
from allranks.engines.kubernetes.pods import Pod
from allranks.engines.kubernetes.reasons import Events, short, why_waiting
from allranks.engines.kubernetes.refusals import Missing, Refused
from allranks.engines.ray import lines
from allranks.errors import EngineError, first_line
from allranks.node.cause import Cause, utc
from allranks.node.status import Status

if TYPE_CHECKING:
    from allranks.engines.engine import Plan

KIND = Kind("ray.io/v1", "RayService", "rayservices", "KubeRay", "https://github.com/ray-project/kuberay")
TYPE, CLUSTER = "ray.io/node-type", "ray.io/cluster"
"""KubeRay's labels of a pod: head or worker, and of which RayCluster."""
TELL = ("python3", "-m", "allranks.engines.ray.tell")
TOLD_WITHIN = 60.0
"""Seconds for a process in the head's pod to reach Ray and the door."""
MOST_LINES = 20_000
GONE_WITHIN = 120.0
"""Seconds for all pods to be gone."""
LOOK, AGAIN = 1.0, 3.0
"""Seconds between two looks of who follows a service, and until a process in the head's pod is started again."""


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
        told, note = _ask(client, main, head)
        status = self.composed_of(client, main, pods, told)
        return replace(status, notes=[*status.notes, note]) if note else status

    def composed_of(self, client: Client, main: Object, pods: Sequence[Pod], told: dict[str, Any] | None) -> Status:
        """The status, remembered for the day when the cluster has it no more."""
        status = compose(main, pods, _events(client, main, pods), told)
        kept.keep(client.access.context, kept.Seen(_space(main), str(main["metadata"]["uid"]), status))
        return status

    def logs(self, name: str, wanted: LogFilter, *, follow: bool) -> Iterator[LogLine | None]:
        client, main = self.must_find(name)
        if follow:
            yield from _follow(RayServiceRun(self, client, main), wanted)
            return
        told, note = _ask(client, main, _head(main, _pods(client, main)))
        if told is None:
            raise EngineError(f"the lines of {name} are with its Ray cluster; {note or 'its head is not there yet'}")
        yield from lines.wanted_of(lines.of(told["lines"]), wanted)

    def end(self, client: Client, main: Object, *, reason: str, code: int) -> Status:
        pods = _pods(client, main)
        status = self.composed_of(client, main, pods, None)
        left = self.remove(client, main, _space(main), GONE_WITHIN)
        if left:
            names = ", ".join(str(pod["metadata"]["name"]) for pod in left[:10])
            raise EngineError(f"service {status.name}: {len(left)} pods do not go: {names}")
        if not status.is_over:
            status.causes = [*status.causes, Cause(status.attempt, "cancelled", utc(), reason, exit=code)]
            status.end("cancelled", reason, code)
        status.nodes, status.conditions, status.ended = [], [], utc()
        kept.keep(client.access.context, kept.Seen(_space(main), str(main["metadata"]["uid"]), status))
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


def _ask(client: Client, main: Object, head: Pod | None) -> tuple[dict[str, Any] | None, str]:
    """What the door tells, and else why nothing is known of it."""
    if head is None:
        return None, ""
    try:
        command = (*TELL, str(main["metadata"]["name"]))
        done = exec.run(client, head.name, head.container, command, head.namespace, timeout=TOLD_WITHIN)
    except EngineError as error:
        return None, f"what the ranks do is not shown: {first_line(error)}"
    told = [line for line in done.output.splitlines() if line.startswith("{")]
    return (json.loads(told[-1]), "") if told else (None, "")


# Who follows one


class RayServiceRun:
    """A service in a cluster, watched from here. It does not hang on this process."""

    def __init__(self, engine: RayServices, client: Client, main: Object) -> None:
        self.name, self.lines = str(main["metadata"]["name"]), LogFilter(since=0)
        self._engine, self._client, self._main = engine, client, main
        self._telling: Telling | None = None
        self._looked, self._status = 0.0, compose(main, (), Events((), ""), None)

    @property
    def telling(self) -> Telling:
        """Started when it is first asked for: who detaches at once needs none."""
        if self._telling is None:
            self._telling = telling(self._client, self._main)
        return self._telling

    def status(self) -> Status:
        if time.monotonic() - self._looked > LOOK:
            self._look()
            self._looked = time.monotonic()
        return self._status

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
        self._status = self._engine.composed_of(self._client, self._main, pods, told)

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


_OPEN: dict[str, Telling] = {}
"""By the uid of the RayService: who follows its lines and who asks how it stands share one process in its pod."""


def telling(client: Client, main: Object) -> Telling:
    """Hear of a service, together with whoever does so already in this process; each closes it once."""
    uid = str(main["metadata"]["uid"])
    if uid not in _OPEN:
        _OPEN[uid] = Telling(client, str(main["metadata"]["name"]), uid)
    _OPEN[uid].users += 1
    return _OPEN[uid]


class Telling(threading.Thread):
    """Keeps what ``tell --follow`` prints in the head's pod, and starts it again when it has ended."""

    def __init__(self, client: Client, name: str, uid: str) -> None:
        super().__init__(daemon=True)
        self._client, self._name, self._uid = client, name, uid
        self._head: Pod | None = None
        self._there, self._closing = threading.Event(), threading.Event()
        self._newest: dict[str, Any] | None = None
        self._lines: deque[Sequence[Any]] = deque(maxlen=MOST_LINES)
        self._count = self._next = self.users = 0
        self._session: exec.Session | None = None
        self.start()

    def asked(self, head: Pod | None) -> dict[str, Any] | None:
        """What was told last by the head that is there; None while nothing is."""
        if head is None or (self._head is not None and head.uid != self._head.uid):
            self._newest = None
        self._head = head
        (self._there.set if head else self._there.clear)()
        return self._newest

    def since(self, at: int) -> tuple[list[Sequence[Any]], int]:
        """Lines from number ``at`` on, and the next number."""
        count, kept_lines = self._count, list(self._lines)
        return kept_lines[len(kept_lines) - max(count - at, 0) :] if count > at else [], count

    def run(self) -> None:
        """Until it is closed."""
        while not self._closing.is_set():
            head = self._head
            if self._there.wait(AGAIN) and head is not None:
                try:
                    self._hear(head)
                except EngineError:
                    pass  # the head is going, or is not ready for it
                self._newest = None
                self._closing.wait(AGAIN)

    def _hear(self, head: Pod) -> None:
        command, partial = (*TELL, self._name, "--follow", "--since", str(self._next)), b""
        with exec.session(self._client, head.name, head.container, command, head.namespace, stdin=True) as session:
            self._session = session
            while not self._closing.is_set() and (piece := session.read()) is not None:
                if piece[0] == exec.STDOUT:
                    *whole, partial = (partial + piece[1]).split(b"\n")
                    for line in whole:
                        if line.startswith(b"{"):
                            self._take(json.loads(line))

    def _take(self, told: dict[str, Any]) -> None:
        self._lines.extend(told["lines"])
        self._count += len(told["lines"])
        self._newest, self._next = told, told["next"]

    def close(self) -> None:
        """Stop, where nobody else wants to hear."""
        self.users -= 1
        if self.users > 0:
            return
        _OPEN.pop(self._uid, None)
        self._closing.set()
        self._there.set()
        if self._session is not None:
            self._session.close()
