"""What the engines on Kubernetes share: an engine is its name, the object it makes, and its ``plan`` module.

What a plan leaves to ``submit``: the value of its Secret (``delivery.SECRET``), and owner references from the plan's
other documents to ``render.main_document(plan)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from allranks.engines.engine import ONLY_REMEMBERED, LogFilter, LogLine
from allranks.engines.kubernetes import client as api
from allranks.engines.kubernetes import delivery, kept, listing, pods, replicas, state
from allranks.engines.kubernetes.client import Client, Object
from allranks.engines.kubernetes.cluster import Cluster
from allranks.engines.kubernetes.kinds import POD, Kind
from allranks.engines.kubernetes.run import KubernetesRun
from allranks.engines.wanted import is_told, must_have_node
from allranks.errors import EngineError, NotFound, SpecError, Unreachable
from allranks.node.status import Status

if TYPE_CHECKING:
    from pathlib import Path

    from allranks.engines.engine import Plan, Run
    from allranks.engines.kubernetes.commands import Given
    from allranks.engines.kubernetes.state import Sight
    from allranks.engines.kubernetes.watch import Watch
    from allranks.spec.job import Job
    from allranks.spec.service import Service


@dataclass(frozen=True)
class KubernetesEngine:
    """Runs gangs by way of one operator. ``fallback`` is what it makes where the operator is not installed.

    ``beside`` are the kinds that only this engine makes beside it.

    ``node_of`` tells which node a pod is, by what its operator has written on it; None for a pod that is none. ``head``
    are the labels that node 0's pod alone has of a run's, empty where there are none. ``names_wait`` says that the
    operator has the cluster's DNS name a pod only once it is ready.
    """

    name: str
    summary: str
    kind: Kind
    fallback: Kind | None = None
    beside: tuple[Kind, ...] = ()
    node_of: pods.NodeOf = pods.of_job
    head: tuple[tuple[str, str], ...] = ((pods.INDEX, "0"),)
    names_wait: bool = False

    def available(self) -> str:
        return api.why_not()

    def cluster(self) -> Cluster:
        """What there is, by the API server, or what is assumed where none can be asked."""
        from allranks.engines.kubernetes.discover import discover

        return Cluster() if api.why_not() else discover(api.connect())

    def connect(self) -> Client:
        """Who asks the API server."""
        return api.connect()

    def create(self, client: Client, plan: Plan) -> Object:
        """Make the plan's objects; returns the engine's own. Raises EngineError."""
        from allranks.engines.kubernetes.submit import submit

        return submit(client, plan)

    def remove(self, client: Client, main: Object, namespace: str, timeout: float) -> list[Object]:
        """Delete it with all that it owns; returns the pods that are left. Raises EngineError."""
        from allranks.engines.kubernetes.name import remove_all

        return remove_all(client, main, namespace, timeout)

    def plan(self, job: Job, folder: Path) -> Plan:
        return self._plan(job, *self._asked())

    def plan_service(self, service: Service, folder: Path) -> Plan:
        from allranks.engines.kubernetes import render, serving

        if not self.head:
            raise SpecError(f"engine {self.name} serves nothing: it makes pods of which allranks cannot tell node 0 by "
                            "a label; serve by --engine jobset, trainjob, mpijob or pytorchjob")  # fmt: skip
        cluster, notes = self._asked()
        gangs = serving.gangs(service, from_the_start=self.names_wait)
        plans = [self._plan(one, cluster, notes) for one in gangs]
        return serving.joined(service, plans, dict(self.head), render.namespace_of(gangs[0], cluster))

    def answers(self, plan: Plan) -> bool:
        from allranks.engines.kubernetes import serving

        return serving.answers(self.connect(), plan, self.node_of)

    def _asked(self) -> tuple[Cluster, list[str]]:
        """The cluster, and a note where it cannot be asked."""
        try:
            return self.cluster(), []
        except EngineError as error:
            return Cluster(), [f"planned without asking the cluster: {error}"]

    def _plan(self, job: Job, cluster: Cluster, notes: Sequence[str]) -> Plan:
        made: Plan = import_module(f"allranks.engines.{self.name}.plan").plan(job, cluster)
        return replace(made, notes=(*made.notes, *notes))

    def role(self, *, force_delete: bool = False) -> dict[str, Any]:
        from allranks.engines.kubernetes import rights

        wanted = [*rights.rights([self.kind], queue=True), *rights.for_beside(self.beside)]
        wanted += rights.for_plain_jobs() if self.fallback else []
        wanted += rights.for_services() if self.head else []
        wanted += rights.for_force_delete() if force_delete else []
        namespace = "default" if api.why_not() else self.connect().namespace
        return rights.role("allranks", namespace, wanted)

    def check(self, plan: Plan) -> Sequence[str]:
        from allranks.engines.kubernetes.check import check

        return check(self.connect(), plan)

    def submit(self, plan: Plan, *, detach: bool) -> Run:
        from allranks.engines.kubernetes import serving

        client = self.connect()
        shared, _ = serving.apart(plan)
        if shared:
            mains = replicas.submit(self, client, plan)
            self._keep(client, mains)
            return replicas.Replicas(self, plan.name, [KubernetesRun(self, client, main) for main in mains])
        if plan.address:
            replicas.make_room(self, client, plan, str(plan.documents[-1]["metadata"]["namespace"]))
        main = self.create(client, plan)
        self._keep(client, [main])
        return KubernetesRun(self, client, main)

    def _keep(self, client: Client, mains: Sequence[Object]) -> None:
        for main in mains:
            kept.remember(client.access.context, main, state.listed(self.name, main))

    def recalled(self, name: str) -> str:
        return "" if api.why_not() else kept.engine(self.connect().access.context, name)

    def status(self, name: str) -> Status:
        return self._told(name, self.seen, self.status)

    def _told(self, name: str, one: Callable[[Client, Object], Status], each: Callable[[str], Status]) -> Status:
        """What ``one`` makes of the run's object, or what is remembered of it; of a service what ``each`` of its gangs.

        Raises NotFound.
        """
        try:
            client, found = self._find(name)
        except NotFound:
            if gangs := self._gangs(name):
                return replicas.together(name, replicas.each(gangs, each))
            raise
        return _without_object(found.status) if isinstance(found, kept.Seen) else one(client, found)

    def seen(self, client: Client, main: Object) -> Status:
        """Look at the run of that object."""
        from allranks.engines.kubernetes.look import look

        return self.composed(client, look(client, self.name, main, self.node_of))

    def logs(self, name: str, wanted: LogFilter, *, follow: bool) -> Iterator[LogLine | None]:
        from allranks.engines.kubernetes import logs
        from allranks.engines.kubernetes.look import look

        client, main = self.must_find(name)
        _, ranks, _ = state.size(main)
        if follow:
            watch = self.watch(client, main)
            try:
                yield from self._follow(client, watch, wanted, ranks)
            finally:
                watch.close()
            return
        sight = look(client, self.name, main, self.node_of)
        status = self.composed(client, sight)
        chosen = logs.wanted(status, wanted)
        found = self._all_pods(client, main)
        yield from logs.gone(found, chosen, status, ranks)
        yield from logs.read(client, found, chosen, ranks)

    def cancel(self, name: str, *, reason: str, code: int = 143) -> Status:
        return self._told(
            name,
            lambda client, main: self.end(client, main, reason=reason, code=code),
            lambda gang: self.cancel(gang, reason=reason, code=code),
        )

    def end(self, client: Client, main: Object, *, reason: str, code: int) -> Status:
        """End the run of that object, and wait until nothing of it runs. Raises EngineError."""
        from allranks.engines.kubernetes.cancel import cancel

        return cancel(self, client, main, reason=reason, code=code)

    def up(self, plan: Plan) -> Run:
        from allranks.engines.kubernetes.commands import staying

        return self.submit(staying(plan), detach=True)

    def exec(self, name: str, argv: Sequence[str], *, restarts: int) -> Given:
        from allranks.engines.kubernetes.commands import give

        with self._listening(name) as (client, watch):
            return give(client, watch, argv, restarts)

    def stop(self, name: str, *, reason: str, code: int = 143) -> Status:
        from allranks.engines.kubernetes.commands import running

        with self._listening(name) as (client, watch):
            given = running(client, watch)
            given.cancel(reason=reason, code=code)
            ended = given.status()
        watch.close()
        return ended

    @contextmanager
    def _listening(self, name: str) -> Iterator[tuple[Client, Watch]]:
        """Who asks, and a look at a run whose coordinator has told its record; closed where something goes wrong."""
        client, main = self.must_find(name)
        watch = self.watch(client, main)
        try:
            watch.await_record()
            yield client, watch
        except BaseException:
            watch.close()
            raise

    def shell(self, name: str, node: int) -> int:
        from allranks.engines.kubernetes.look import glance
        from allranks.engines.kubernetes.reasons import why_waiting
        from allranks.engines.kubernetes.terminal import serve

        client, main = self.must_find(name)
        nodes, _, _ = state.size(main)
        must_have_node(name, node, nodes)
        sight = glance(client, self.name, main, self.node_of)
        pod = sight.pods.get(node)
        if pod is None or not pod.is_running:
            why = why_waiting(pod, sight.events) if pod else "it has no pod"
            raise EngineError(f"node {node} of {name} does not run: {why or 'it has ended'}")
        return serve(client, pod, node)

    # ---- shared

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of its own object, the operator's first."""
        return (self.kind, *([self.fallback] if self.fallback else []))

    def _find(self, name: str) -> tuple[Client, Object | kept.Seen]:
        """The run's object, or what this client saw of it last where the cluster has it no more. Raises NotFound."""
        from allranks.engines.kubernetes.look import find

        client = self.connect()
        context = client.access.context
        before = [space for space in kept.namespaces(context, name) if space != client.namespace]
        spaces = (client.namespace, *before)
        try:
            main = find(client, self.kinds, name, spaces)
        except Unreachable as error:
            raise self._unseen(client, name, spaces, error) from error
        if main is not None and main["metadata"]["labels"].get(delivery.ENGINE) == self.name:
            return client, main
        if (seen := self._remembered(client, name, spaces)) is not None:
            return client, seen
        place = f"namespace {client.namespace} of context {context}"
        missing = NotFound(f"no run named {name}: {place} has no {self.kind.kind} of that name that allranks made; "
                           "see: allranks list")  # fmt: skip
        missing.place = place
        raise missing

    def _remembered(self, client: Client, name: str, spaces: Sequence[str]) -> kept.Seen | None:
        found = (kept.read(client.access.context, space, name) for space in spaces)
        return next((one for one in found if one is not None and one.status.engine == self.name), None)

    def _unseen(self, client: Client, name: str, spaces: Sequence[str], error: Unreachable) -> Unreachable:
        """What to say of a run that this client knows, and cannot see now."""
        seen = self._remembered(client, name, spaces)
        if seen is None:
            return error
        known = Unreachable(f"{error}\nRun {name} cannot be seen; it was {seen.status.phase} when this machine saw it "
                            "last, and its ranks do not need the API server.")  # fmt: skip
        known.run = name
        return known

    def _gangs(self, name: str) -> list[str]:
        """The gangs of a service of that name that has several; none for any other name."""
        client = self.connect()
        spaces = dict.fromkeys((client.namespace, *kept.namespaces(client.access.context, f"{name}-0")))
        return [str(main["metadata"]["name"]) for main in replicas.gangs_of(self, client, name, spaces)]

    def must_find(self, name: str) -> tuple[Client, Object]:
        """The run's object and who asks for it. Raises NotFound, EngineError where only this client remembers it."""
        try:
            client, found = self._find(name)
        except NotFound:
            if gangs := self._gangs(name):
                raise NotFound(f"{name} is a service of several gangs; name one: {', '.join(gangs)}") from None
            raise
        if isinstance(found, kept.Seen):
            where = f"{self.kind.kind} {name} is not in namespace {found.namespace} any more"
            raise EngineError(f"{where}, and with it went its pods and what they printed; see: allranks status {name}")
        return client, found

    def composed(self, client: Client, sight: Sight) -> Status:
        """The status, remembered for the day when the cluster has it no more."""
        context = client.access.context
        status = state.compose(sight, kept.of(context, sight.main))
        kept.remember(context, sight.main, status)
        return status

    def _all_pods(self, client: Client, main: Object) -> list[pods.Pod]:
        namespace, name = str(main["metadata"]["namespace"]), str(main["metadata"]["name"])
        found = client.list(POD, namespace, labels=f"{delivery.RUN}={name}")
        numbered = [(self.node_of(raw), raw) for raw in found]
        made = [pods.Pod(node, raw) for node, raw in numbered if node is not None]
        made += pods.speakers(found, self.node_of)
        return sorted(made, key=lambda pod: (pod.node, pod.created))

    def watch(self, client: Client, main: Object) -> Watch:
        """Look at the run of that object from now on."""
        from allranks.engines.kubernetes.watch import watch

        return watch(client, self.name, main, self.node_of)

    def _follow(self, client: Client, watch: Watch, wanted: LogFilter, ranks: int) -> Iterator[LogLine | None]:
        from allranks.engines.kubernetes import logs

        def over(status: Status) -> bool:
            return is_told(status, wanted) or (wanted.attempt is not None and status.attempt > wanted.attempt)

        return logs.follow(client, watch, logs.wanted(watch.status(), wanted), ranks, over)

    def list(self) -> Sequence[Status]:
        client, labels = self.connect(), f"{delivery.RUN},{delivery.ENGINE}={self.name}"
        spaces = dict.fromkeys((client.namespace, *kept.all_namespaces(client.access.context)))
        found = [main for space in spaces for main in listing.mains(client, self.kinds, space, labels)]
        newest = sorted(found, key=lambda main: str(main["metadata"]["creationTimestamp"]), reverse=True)
        return self.listed(client, newest)

    def listed(self, client: Client, mains: Sequence[Object]) -> Sequence[Status]:
        """The runs of these objects in short, in the same order."""
        return listing.statuses(client, self.name, mains, self.node_of)


def _without_object(status: Status) -> Status:
    """A run that the cluster has no more, as it was seen last."""
    if not status.is_over:
        status.end("cancelled", "its object is not in the cluster any more: somebody deleted it", 143)
    notes = [*(line for line in status.notes if line != ONLY_REMEMBERED), ONLY_REMEMBERED]
    return replace(status, notes=notes, conditions=[])
