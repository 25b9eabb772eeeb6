"""A plan's objects are made: all of them or none, and all of them go when the engine's own object does."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from allranks.engines.child import is_alive
from allranks.engines.kubernetes import delivery, render
from allranks.engines.kubernetes.client import Client, Object
from allranks.engines.kubernetes.conditions import ending
from allranks.engines.kubernetes.kinds import CONFIGMAP, POD, SECRET, Kind, kind_of
from allranks.engines.kubernetes.refusals import Missing, NoRight, NotInstalled, Refused, Unreachable
from allranks.errors import EngineError
from allranks.node import keeper

if TYPE_CHECKING:
    from allranks.engines.engine import Plan

GONE_WITHIN = 60.0
"""Seconds for a finished run of the same name to be gone, pods included."""
SEEN_WITHIN = 5.0
"""Seconds for a webhook to see the objects that are made before the last one."""
POLL = 0.2


def submit(client: Client, plan: Plan) -> Object:
    """Make the objects of a plan; return the engine's own. Raises EngineError, having left nothing, or saying what."""
    main = render.main_document(plan)
    namespace = str(main["metadata"]["namespace"])
    free_the_name(client, plan, namespace)
    made: list[Object] = []
    try:
        *others, last = in_order(plan)
        for document in others:
            made.append(_create(client, document, namespace, made))
        made.append(_create_last(client, last, namespace, made))
        belong_to(client, [made[-1]], made[:-1], namespace)
    except BaseException as error:
        undo(client, made, namespace, error)
        raise
    return made[-1]


def _create(client: Client, document: Mapping[str, Any], namespace: str, made: list[Object]) -> Object:
    """An object whose answer was lost may be there: it is undone with the others, or told as left behind."""
    try:
        return client.create(document, namespace)
    except Unreachable:
        made.append(dict(document))
        raise


def _create_last(client: Client, main: Mapping[str, Any], namespace: str, made: list[Object]) -> Object:
    """An operator's webhook may not have seen yet what was made just before: Trainer's looks for the runtime."""
    until = time.monotonic() + SEEN_WITHIN
    while True:
        try:
            return _create(client, main, namespace, made)
        except Refused as refused:
            if not is_not_seen_yet(refused) or time.monotonic() > until:
                raise
        time.sleep(POLL)


def is_not_seen_yet(refused: Refused) -> bool:
    """Whether an operator's webhook looks for an object that has only just been made, if at all."""
    return "not found" in str(refused) and "admission webhook" in str(refused)


def in_order(plan: Plan) -> list[dict[str, Any]]:
    """The secret first, its value made now, and the engine's own object last: its pods find all that they mount."""
    *others, main = plan.documents
    with_value = [_with_value(document) if document["kind"] == "Secret" else document for document in others]
    return [*sorted(with_value, key=lambda document: document["kind"] != "Secret"), main]


def _with_value(secret: Mapping[str, Any]) -> dict[str, Any]:
    if secret["metadata"]["name"] != delivery.name_of(secret["metadata"]["labels"][delivery.RUN]):
        return dict(secret)
    return {**secret, "stringData": {**secret.get("stringData", {}), delivery.SECRET: secrets.token_hex(32)}}


def belong_to(client: Client, owners: Sequence[Object], others: Sequence[Object], namespace: str) -> None:
    """Have the deletion of the last of the owners take the others too."""
    references = [
        {
            "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
        }
        for owner in owners
    ]  # fmt: skip
    for one in others:
        change = {"metadata": {"ownerReferences": references}}
        client.patch(kind_of(one), one["metadata"]["name"], change, namespace)


def undo(client: Client, made: list[Object], namespace: str, error: BaseException) -> None:
    """Remove what was made, or say in the error exactly what could not be."""
    left: list[str] = []
    perhaps: list[str] = []
    for one in reversed(made):
        try:
            client.delete(kind_of(one), one["metadata"]["name"], namespace)
        except EngineError:
            is_known = "uid" in one["metadata"]  # else the answer to its creation was lost
            (left if is_known else perhaps).append(f"{kind_of(one).plural}/{one['metadata']['name']}")
    if left or perhaps:
        told = [", ".join(left)] if left else []
        told += [f"perhaps {', '.join(perhaps)}"] if perhaps else []
        command = f"kubectl -n {namespace} delete --ignore-not-found {' '.join([*left, *perhaps])}"
        error.args = (f"{error}; left behind: {' and '.join(told)}; remove them with: {command}", *error.args[1:])


# The name


def free_the_name(client: Client, plan: Plan, namespace: str) -> None:
    """Make room for a run: one of that name that is over goes, on whichever engine; one that is alive is an error."""
    for kind in _kinds_of_that_name(client, plan, namespace):
        try:
            there = client.get(kind, plan.name, namespace)
        except (Missing, NotInstalled):
            continue
        _must_be_over(there, namespace)
        remove(client, there, namespace, GONE_WITHIN)
    _remove_leftovers(client, plan, namespace)


def _kinds_of_that_name(client: Client, plan: Plan, namespace: str) -> list[Kind]:
    """The engine's own kind, and that of a run whose agent's files have the name: it may be another engine's."""
    kinds = [kind_of(render.main_document(plan))]
    try:
        files = client.get(CONFIGMAP, delivery.name_of(plan.name), namespace)
    except (Missing, NoRight):  # Roles of older versions do not have it
        return kinds
    owners = [kind_of(owner) for owner in files["metadata"].get("ownerReferences") or () if owner["name"] == plan.name]
    return [*kinds, *(kind for kind in owners if kind not in kinds)]


def _must_be_over(there: Object, namespace: str) -> None:
    kind, name, labels = kind_of(there).kind, there["metadata"]["name"], there["metadata"].get("labels") or {}
    if delivery.RUN not in labels:
        raise EngineError(f"{kind} {name} exists already in namespace {namespace}, and allranks did not make it; "
                          "give this run another name: '--name OTHER'")  # fmt: skip
    if not ending(there):
        raise is_alive(name, f"in namespace {namespace} (engine {labels.get(delivery.ENGINE)})")


def _remove_leftovers(client: Client, plan: Plan, namespace: str) -> None:
    """Of a client that died between two objects, and of an owner whose garbage is still being collected."""
    for document in plan.documents[:-1]:
        if document["metadata"]["name"] in (delivery.name_of(plan.name), keeper.name_of(plan.name)):
            client.delete(kind_of(document), document["metadata"]["name"], namespace)


def remove(client: Client, main: Object, namespace: str, timeout: float) -> list[Object]:
    """Delete a run's object with all that it owns; return the pods that are still there after ``timeout`` seconds.

    A client that died before it could say so has left the agent's files without an owner: they go too.
    """
    kind, name = kind_of(main), str(main["metadata"]["name"])
    run = (main["metadata"].get("labels") or {}).get(delivery.RUN, name)
    client.delete(kind, name, namespace)
    until = time.monotonic() + timeout
    while True:
        left = client.list(POD, namespace, labels=f"{delivery.RUN}={run}")
        if not left and not _is_there(client, main, namespace):
            for files in (SECRET, CONFIGMAP):
                client.delete(files, delivery.name_of(run), namespace)
            return []
        if time.monotonic() > until:
            return left
        time.sleep(POLL)


def _is_there(client: Client, main: Object, namespace: str) -> bool:
    try:
        found = client.get(kind_of(main), str(main["metadata"]["name"]), namespace)
    except Missing:
        return False
    return bool(found["metadata"]["uid"] == main["metadata"]["uid"])
