"""A plan's objects are made: all of them or none, and all of them go when the engine's own object does."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from allranks.engines.kubernetes import delivery, name, render
from allranks.engines.kubernetes.client import Client, Object
from allranks.engines.kubernetes.kinds import kind_of
from allranks.engines.kubernetes.refusals import Missing, Refused, Unreachable
from allranks.errors import EngineError

if TYPE_CHECKING:
    from allranks.engines.engine import Plan

SEEN_WITHIN = 5.0
"""Seconds for a webhook to see the objects that are made before the last one."""
POLL = 0.2


def submit(client: Client, plan: Plan) -> Object:
    """Make the objects of a plan; return the engine's own. Raises EngineError, having left nothing, or saying what."""
    main = render.main_document(plan)
    namespace = str(main["metadata"]["namespace"])
    name.free(client, plan, namespace)
    made: list[Object] = []
    try:
        *others, last = in_order(plan)
        for document in others:
            first = not made
            made.append(
                take(client, plan, document, namespace, made) if first else _create(client, document, namespace, made)
            )
        made.append(_create_last(client, last, namespace, made))
        belong_to(client, [made[-1]], made[:-1], namespace)
    except BaseException as error:
        undo(client, made, namespace, error)
        raise
    return made[-1]


def take(client: Client, plan: Plan, files: Mapping[str, Any], namespace: str, made: list[Object]) -> Object:
    """The run's files, which are made first. Where their answer was lost they are known by their mark."""
    with _perhaps_made(files, made):
        return name.take(client, plan, files, namespace)


def _create(client: Client, document: Mapping[str, Any], namespace: str, made: list[Object]) -> Object:
    with _perhaps_made(document, made):
        return client.create(document, namespace)


@contextmanager
def _perhaps_made(document: Mapping[str, Any], made: list[Object]) -> Iterator[None]:
    """An object whose answer was lost may be there: it is undone with the others, or told as left behind.

    A signal (SystemExit, KeyboardInterrupt) loses it as well as a line that breaks.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, Unreachable) or not isinstance(error, EngineError):
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
    """The run's files first, if it has any, with a mark; the secret's value made now; the engine's own object last.

    So its pods find all that they mount, and who has made the first one has the run's name.
    """
    *others, main = plan.documents
    files = name.files_of(plan)
    ready = []
    for document in sorted(others, key=lambda document: document is not files):
        made = _with_value(document) if document["kind"] == "Secret" else document
        ready.append(_marked(made) if document is files else made)
    return [*ready, main]


def _marked(files: Mapping[str, Any]) -> dict[str, Any]:
    metadata = files["metadata"]
    mark = {delivery.SUBMIT: secrets.token_hex(8)}
    return {**files, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), **mark}}}


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
        change = {"metadata": {"uid": one["metadata"]["uid"], "ownerReferences": references}}
        client.patch(kind_of(one), one["metadata"]["name"], change, namespace)


def undo(client: Client, made: list[Object], namespace: str, error: BaseException) -> None:
    """Remove what was made, or say in the error exactly what could not be."""
    left: list[str] = []
    perhaps: list[str] = []
    for one in reversed(made):
        try:
            if uid := one["metadata"].get("uid") or _uid_if_ours(client, one, namespace):
                client.delete(kind_of(one), one["metadata"]["name"], namespace, uid=uid)
        except EngineError:
            is_known = "uid" in one["metadata"]  # else the answer to its creation was lost
            (left if is_known else perhaps).append(f"{kind_of(one).plural}/{one['metadata']['name']}")
    _say_what_is_left(left, perhaps, namespace, error)


def _uid_if_ours(client: Client, one: Object, namespace: str) -> str:
    """Of an object whose answer was lost: the run's name was ours, so all but its files is, where it is there."""
    try:
        found = client.get(kind_of(one), one["metadata"]["name"], namespace)["metadata"]
    except Missing:
        return ""
    marks = [(metadata.get("annotations") or {}).get(delivery.SUBMIT) for metadata in (found, one["metadata"])]
    return str(found["uid"]) if marks[0] == marks[1] else ""


def _say_what_is_left(left: list[str], perhaps: list[str], namespace: str, error: BaseException) -> None:
    if left or perhaps:
        told = [", ".join(left)] if left else []
        told += [f"perhaps {', '.join(perhaps)}"] if perhaps else []
        command = f"kubectl -n {namespace} delete --ignore-not-found {' '.join([*left, *perhaps])}"
        error.args = (f"{error}; left behind: {' and '.join(told)}; remove them with: {command}", *error.args[1:])
