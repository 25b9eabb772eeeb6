"""Many runs at a glance: by their objects and their pods, two calls for each namespace; no coordinator is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from allranks.engines.kubernetes import delivery, kept, pods, state
from allranks.engines.kubernetes.client import Client, Object
from allranks.engines.kubernetes.conditions import ending
from allranks.engines.kubernetes.kinds import POD, Kind
from allranks.engines.kubernetes.pods import NodeOf
from allranks.engines.kubernetes.refusals import NoRight, NotInstalled, Refused
from allranks.node.status import Status

Made = Mapping[tuple[str, str], Sequence[Object]]
"""Pods by namespace and run."""


def mains(client: Client, kinds: Sequence[Kind], namespace: str, labels: str) -> list[Object]:
    """The engine's objects with these labels: of its own kind, and of those that are ways out, as far as they are seen.

    Raises EngineError.
    """
    found: list[Object] = []
    for kind in kinds:
        try:
            found += client.list(kind, namespace, labels=labels)
        except NotInstalled:
            continue
        except Refused as refused:
            if kind == kinds[0] or not refused.is_forbidden:
                raise
    return found


def statuses(client: Client, engine: str, mains: Sequence[Object], node_of: NodeOf) -> list[Status]:
    """The runs whose objects these are, in the same order."""
    spaces = {str(main["metadata"]["namespace"]) for main in mains if not ending(main)}
    made = _pods(client, engine, spaces)
    return [_status(client, engine, main, made, node_of) for main in mains]


def _pods(client: Client, engine: str, namespaces: Iterable[str]) -> Made | None:
    """The pods of all runs; None where they may not be seen."""
    found: dict[tuple[str, str], list[Object]] = {}
    try:
        for namespace in namespaces:
            for pod in client.list(POD, namespace, labels=f"{delivery.RUN},{delivery.ENGINE}={engine}"):
                found.setdefault((namespace, str(pod["metadata"]["labels"][delivery.RUN])), []).append(pod)
    except NoRight:
        return None
    return found


def _status(client: Client, engine: str, main: Object, made: Made | None, node_of: NodeOf) -> Status:
    """What this client saw of it last tells more than its object: of one that is over all, else whether it is idle."""
    namespace, name = str(main["metadata"]["namespace"]), str(main["metadata"]["name"])
    mine = None if made is None else pods.by_node(made.get((namespace, name), ()), node_of)
    status = state.listed(engine, main, mine)
    seen = kept.of(client.access.context, main)
    if seen is None:
        return status
    if status.is_over:
        return seen if seen.is_over else status
    return replace(status, phase="idle") if (status.phase, seen.phase) == ("running", "idle") else status
