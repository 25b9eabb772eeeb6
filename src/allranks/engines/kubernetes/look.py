"""Look at a run: a constant number of calls at any size, and few rights.

``get`` of the engine's object and ``list`` of the pods always; ``list`` of events only while something is missing, of
Kueue's workloads only while it is suspended. The coordinator's record is printed by a command in node 0's container,
which needs ``create`` of pods/exec; without that right all but the ranks is still told, with a note that says so.
Of a run that is over and whose pods are gone its ledger tells, where it kept one: ``get`` of configmaps.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from allranks.engines.kubernetes import delivery, exec, pods, queue
from allranks.engines.kubernetes.client import Client, Object
from allranks.engines.kubernetes.conditions import ending
from allranks.engines.kubernetes.kinds import CONFIGMAP, EVENT, POD, Kind
from allranks.engines.kubernetes.pods import NodeOf, Pod, read_record
from allranks.engines.kubernetes.reasons import Events
from allranks.engines.kubernetes.refusals import Missing, NotInstalled, Refused, Unreachable
from allranks.engines.kubernetes.state import Sight
from allranks.errors import EngineError, first_line
from allranks.node import keeper

if TYPE_CHECKING:
    from allranks.node.status import Status


def look(client: Client, engine: str, main: Object, node_of: NodeOf) -> Sight:
    """See how a run stands; its coordinator is asked too, where there is one."""
    sight = glance(client, engine, main, node_of)
    if ending(main):
        return sight if any(True for pod in sight.pods.values() for _ in pod.left()) else _from_ledger(client, sight)
    return _asked(client, sight)


def _from_ledger(client: Client, sight: Sight) -> Sight:
    """Few runs have one, and fewer people may read it: then the object alone tells the end."""
    try:
        found = client.get(CONFIGMAP, keeper.name_of(sight.name), sight.namespace)
        return replace(sight, record=read_record(json.dumps(json.loads(found["data"][keeper.KEY])["record"])))
    except (EngineError, KeyError, ValueError, TypeError):
        return sight


def glance(client: Client, engine: str, main: Object, node_of: NodeOf) -> Sight:
    """What the API server alone knows."""
    namespace, name = str(main["metadata"]["namespace"]), str(main["metadata"]["name"])
    found = client.list(POD, namespace, labels=f"{delivery.RUN}={name}")
    sight = Sight(engine, main, pods.by_node(found, node_of), speakers=pods.speakers(found, node_of))
    if ending(main) or sight.is_whole:
        return sight
    events, notes = _events(client, namespace, name)
    return replace(sight, events=events, queue=queue.why_suspended(client, main, namespace), notes=notes)


def _events(client: Client, namespace: str, name: str) -> tuple[Events, tuple[str, ...]]:
    try:
        return Events(client.list(EVENT, namespace, fields="type=Warning"), name), ()
    except Refused as refused:
        return Events((), name), (f"events are not shown: {first_line(refused)}",)


def _asked(client: Client, sight: Sight) -> Sight:
    """The same with the coordinator's own record."""
    pod = sight.pods.get(0)
    if pod is None or not pod.is_running:
        return sight
    try:
        return replace(sight, record=record(client, pod))
    except Unreachable:
        return sight  # its node may be lost; the pods tell that
    except EngineError as error:
        if isinstance(error, Refused) and not error.is_forbidden:
            return sight  # the container has just ended
        note = f"what the ranks do is not shown: {first_line(error)}"
        return replace(sight, notes=(*sight.notes, note))


def record(client: Client, pod: Pod) -> Status | None:
    """What the coordinator in that pod has recorded; None when it has nothing yet. Raises EngineError."""
    done = exec.run(client, pod.name, pod.container, pod.agent("record"), pod.namespace)
    return read_record(done.output)


def find(client: Client, kinds: tuple[Kind, ...], name: str, namespaces: tuple[str, ...]) -> Object | None:
    """The engine's object of that name, the newest of those in these namespaces that are ours."""
    found = [main for namespace in namespaces if (main := _in(client, kinds, name, namespace)) is not None]
    return max(found, key=lambda main: str(main["metadata"]["creationTimestamp"]), default=None)


def _in(client: Client, kinds: tuple[Kind, ...], name: str, namespace: str) -> Object | None:
    """Of the first of these kinds that has it."""
    for kind in kinds:
        try:
            found = client.get(kind, name, namespace)
        except (Missing, NotInstalled):
            continue
        except Refused as refused:
            if kind == kinds[0] or not refused.is_forbidden:  # the others are ways out where that is not installed
                raise
            continue
        if delivery.RUN in (found["metadata"].get("labels") or {}):
            return found
    return None
