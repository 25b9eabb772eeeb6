"""The gangs of one service: each a run of its own, NAME-0, NAME-1 and so on, made, told of and ended together.

A gang that breaks is no concern of the others, so no object holds two: JobSet would make them all anew with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from allranks.engines.engine import LogFilter
from allranks.engines.kubernetes import delivery, listing
from allranks.engines.kubernetes.client import Client, Object
from allranks.engines.kubernetes.conditions import ending
from allranks.engines.kubernetes.kinds import SERVICE as KIND
from allranks.engines.kubernetes.refusals import Missing
from allranks.errors import EngineError
from allranks.node.status import NodeStatus, Status

if TYPE_CHECKING:
    from allranks.engines.engine import Plan
    from allranks.engines.kubernetes.control import KubernetesEngine
    from allranks.engines.kubernetes.run import KubernetesRun

AT_A_TIME = 8
WORST = ("failed", "cancelled", "restarting", "pending", "starting", "idle", "running", "succeeded")
"""Phases, the one first that a service has if any of its gangs does."""


def submit(engine: KubernetesEngine, client: Client, plan: Plan) -> list[Object]:
    """Make all gangs of a service and what they share; return the gangs' objects. Raises EngineError, leaving none."""
    from allranks.engines.kubernetes.serving import apart
    from allranks.engines.kubernetes.submit import belong_to, undo

    shared, plans = apart(plan)
    namespace = str(plans[0].documents[-1]["metadata"]["namespace"])
    make_room(engine, client, plan, namespace)
    made: list[Object] = []
    mains: list[Object] = []
    try:
        made += [client.create(document, namespace) for document in shared]
        for one in plans:
            mains.append(engine.create(client, one))
        belong_to(client, mains, made, namespace)
    except BaseException as error:
        undo(client, [*made, *mains], namespace, error)
        raise
    return mains


def make_room(engine: KubernetesEngine, client: Client, plan: Plan, namespace: str) -> None:
    """Remove what is left of a service of that name that is over; one that is alive is an error."""
    from allranks.engines.kubernetes.name import GONE_WITHIN, remove

    there = gangs_of(engine, client, plan.name, [namespace])
    alive = [str(main["metadata"]["name"]) for main in there if not ending(main)]
    if alive:
        raise EngineError(
            f"a service named {plan.name} is alive in namespace {namespace} ({', '.join(alive)})\n"
            f"End it with 'allranks cancel {plan.name}', or give this one another name: '--name OTHER'."
        )
    for main in there:
        remove(client, main, namespace, GONE_WITHIN)
    for document in plan.documents:
        if delivery.SERVICE in ((document.get("spec") or {}).get("selector") or {}):
            _remove_lead(client, str(document["metadata"]["name"]), plan.name, namespace)


def _remove_lead(client: Client, name: str, service: str, namespace: str) -> None:
    """The garbage of an owner that has just gone may not have been collected yet."""
    from allranks.engines.kubernetes.name import is_not_ours, must_be_left

    try:
        there = client.get(KIND, name, namespace)
    except Missing:
        return
    if (there["metadata"].get("labels") or {}).get(delivery.SERVICE) != service:
        raise is_not_ours("Service", name, namespace, "service")
    must_be_left(client, service, there, namespace)
    client.delete(KIND, name, namespace, uid=there["metadata"]["uid"])


def gangs_of(engine: KubernetesEngine, client: Client, service: str, namespaces: Iterable[str]) -> list[Object]:
    """The engine's objects that are the service's gangs, in the first of the namespaces that has any."""
    for namespace in namespaces:
        labels = f"{delivery.SERVICE}={service},{delivery.ENGINE}={engine.name}"
        if found := listing.mains(client, engine.kinds, namespace, labels):
            return sorted(found, key=lambda main: _number(str(main["metadata"]["name"])))
    return []


def _number(name: str) -> tuple[int, str]:
    last = name.rpartition("-")[2]
    return (int(last) if last.isdecimal() else -1, name)


def each(gangs: Sequence[str], do: Callable[[str], Status]) -> list[Status]:
    """Do it to all of them, at the same time: to end one takes as long as its ranks' grace."""
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return list(pool.map(do, gangs))


def together(service: str, gangs: Sequence[Status]) -> Status:
    """The service as one run: nodes and ranks counted through, causes with their gang's name, a note for each gang."""
    first = min(gangs, key=lambda one: WORST.index(one.phase) if one.phase in WORST else 0)
    over = all(one.is_over for one in gangs)
    living = [one for one in gangs if not one.is_over] or gangs
    phase = first.phase if over else min(living, key=lambda one: WORST.index(one.phase)).phase
    causes = [replace(cause, message=f"{one.name}: {cause.message}") for one in gangs for cause in one.causes]
    return Status(
        service,
        gangs[0].engine,
        phase,
        "; ".join(f"{one.name}: {one.reason or one.phase}" for one in gangs if one.reason or one.is_over),
        attempt=max(one.attempt for one in gangs),
        restarts={key: sum(one.restarts[key] for one in gangs) for key in ("used", "allowed")},
        world_size=sum(one.world_size for one in gangs),
        nodes=list(_nodes(gangs)),
        causes=sorted(causes, key=lambda cause: cause.at),
        started=min(one.started for one in gangs),
        ended=max(one.ended for one in gangs) if over else "",
        exit_code=first.exit_code if over else None,
        notes=[*(f"{one.name}: {note}" for one in gangs for note in one.notes), *map(_line, gangs)],
    )


def _nodes(gangs: Sequence[Status]) -> Iterable[NodeStatus]:
    nodes, ranks = 0, 0
    for one in gangs:
        for node in one.nodes:
            mine = [replace(rank, rank=rank.rank + ranks) for rank in node.ranks]
            yield replace(node, node=node.node + nodes, ranks=mine)
        nodes, ranks = nodes + len(one.nodes), ranks + one.world_size


def _line(gang: Status) -> str:
    used, allowed = gang.restarts["used"], gang.restarts["allowed"]
    return f"{gang.name} is {gang.phase}, attempt {gang.attempt}, restarts {used} of {allowed}"


class Replicas:
    """A service of several gangs, just started. They do not hang on this process."""

    def __init__(self, engine: KubernetesEngine, name: str, gangs: Sequence[KubernetesRun]) -> None:
        self.name, self.lines = name, LogFilter(since=0)
        self._engine, self._gangs = engine, gangs

    def status(self) -> Status:
        """How they stand; one whose node 0 has not started in time is ended, for itself. Raises EngineError."""
        return together(self.name, [gang.status() for gang in self._gangs])

    def cancel(self, *, reason: str, code: int) -> None:
        self._engine.cancel(self.name, reason=reason, code=code)

    def detach(self) -> None:
        for gang in self._gangs:
            gang.detach()

    def wait(self, timeout: float) -> bool:
        """Until nothing of any of them runs."""
        until = time.monotonic() + timeout
        over = [gang.wait(max(until - time.monotonic(), 0)) for gang in self._gangs]  # each is closed that is
        return all(over)
