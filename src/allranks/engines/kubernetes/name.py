"""Who has a run's name: its files are made before all else and go last, and whoever made those has the name.

They are the ConfigMap that the agents come with, or the Secret where a plan has it all in that (Run:ai's version 1).
So two clients that start one name at the same moment cannot both: the second one has made nothing, and undoes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from allranks.engines.child import is_alive
from allranks.engines.kubernetes import delivery, render
from allranks.engines.kubernetes.client import Client, Object
from allranks.engines.kubernetes.conditions import ending
from allranks.engines.kubernetes.kinds import CONFIGMAP, POD, SECRET, Kind, kind_of
from allranks.engines.kubernetes.pods import moment
from allranks.engines.kubernetes.refusals import Missing, NoRight, NotInstalled, Refused
from allranks.errors import EngineError
from allranks.node import keeper

if TYPE_CHECKING:
    from allranks.engines.engine import Plan

GONE_WITHIN = 60.0
"""Seconds for a finished run of the same name to be gone, pods included."""
STARTING = 120.0
"""Seconds in which a client that lives makes all objects; a ConfigMap that has no owner by then was left behind."""
COLLECTED_WITHIN = 10.0
"""Seconds for the garbage of a run that has just gone to be gone too."""
FORGOTTEN_WITHIN = 2.0
"""Seconds for kubelets to forget the Secret of pods that have gone: else they give the old value to new pods."""
POLL = 0.2


def free(client: Client, plan: Plan, namespace: str) -> None:
    """Make room for a run: one of that name that is over goes, on whichever engine; one that is alive is an error."""
    files = files_of(plan)
    kinds = dict.fromkeys((CONFIGMAP, *([kind_of(files)] if files else [])))
    left = [found for kind in kinds if (found := _files(client, kind, plan.name, namespace)) is not None]
    removed = False
    for kind in _kinds_of_that_name(plan, left):
        try:
            there = client.get(kind, plan.name, namespace)
        except (Missing, NotInstalled):
            continue
        _must_be_over(there, namespace)
        remove(client, there, namespace, GONE_WITHIN)
        removed = True
    for one in left:
        _must_be_ours(one, namespace)
        must_be_left(client, plan.name, one, namespace)
        client.delete(kind_of(one), one["metadata"]["name"], namespace, uid=one["metadata"]["uid"])
    if _await_no_pods(client, plan.name, namespace, list(kinds)) or removed:
        time.sleep(FORGOTTEN_WITHIN)


def _await_no_pods(client: Client, run: str, namespace: str, kinds: Sequence[Kind]) -> bool:
    """Of a run that somebody else has just deleted: its pods, and what they print, must not be taken for ours.

    Returns whether there were any.
    """
    until = time.monotonic() + GONE_WITHIN
    waited = False
    while client.has_any(POD, namespace, labels=f"{delivery.RUN}={run}"):
        if any(_files(client, kind, run, namespace) for kind in kinds):
            raise _is_starting(run, namespace)
        if time.monotonic() > until:
            raise EngineError(f"pods of an earlier run named {run} do not go from namespace {namespace}; "
                              f"see: kubectl -n {namespace} get pods -l {delivery.RUN}={run}")  # fmt: skip
        waited = True
        time.sleep(POLL)
    return waited


def take(client: Client, plan: Plan, files: Mapping[str, Any], namespace: str) -> Object:
    """Make the run's files, and with them room for its other objects. Raises EngineError where somebody else did."""
    until = time.monotonic() + COLLECTED_WITHIN
    while True:
        try:
            made = client.create(files, namespace)
            break
        except Refused as refused:
            if refused.why != "AlreadyExists":
                raise
            if _files(client, kind_of(files), plan.name, namespace) is not None:
                raise _is_starting(plan.name, namespace) from refused
            if time.monotonic() > until:
                there = f"{kind_of(files).plural} {files['metadata']['name']}"
                otherwise = f"or one died and left {there}: kubectl -n {namespace} delete {there}; "
                raise _is_starting(plan.name, namespace, otherwise) from refused
        time.sleep(POLL)
    _remove_leftovers(client, plan, namespace)
    return made


def files_of(plan: Plan) -> Mapping[str, Any] | None:
    """The document by which a plan has its run's name; None where its own object is all that it makes (KubeRay)."""
    return min(filter(_is_files, plan.documents), key=lambda document: str(document["kind"]), default=None)


def _is_files(document: Mapping[str, Any]) -> bool:
    metadata = document["metadata"]
    run = (metadata.get("labels") or {}).get(delivery.RUN, "")
    return document["kind"] in ("ConfigMap", "Secret") and bool(metadata["name"] == delivery.name_of(run))


def _files(client: Client, kind: Kind, run: str, namespace: str) -> Object | None:
    """The files of a run of that name; None also where nobody may look, as by Roles of older versions."""
    try:
        return client.get(kind, delivery.name_of(run), namespace)
    except (Missing, NoRight):
        return None


def _kinds_of_that_name(plan: Plan, files: Sequence[Object]) -> list[Kind]:
    """The engine's own kind, and that of a run whose agent's files have the name: it may be another engine's."""
    kinds = [kind_of(render.main_document(plan))]
    owners = [owner for one in files for owner in one["metadata"].get("ownerReferences") or ()]
    found = [kind_of(owner) for owner in owners if owner["name"] == plan.name]
    return [*kinds, *(kind for kind in found if kind not in kinds)]


def _must_be_over(there: Object, namespace: str) -> None:
    kind, name, labels = kind_of(there).kind, there["metadata"]["name"], there["metadata"].get("labels") or {}
    if delivery.RUN not in labels:
        raise is_not_ours(kind, name, namespace)
    if not ending(there):
        raise is_alive(name, f"in namespace {namespace} (engine {labels.get(delivery.ENGINE)})")


def _must_be_ours(files: Object, namespace: str) -> None:
    if delivery.RUN not in (files["metadata"].get("labels") or {}):
        raise is_not_ours(files["kind"], files["metadata"]["name"], namespace)


def must_be_left(client: Client, name: str, there: Object, namespace: str) -> None:
    """By a client that died between two objects, or by a run that is gone and whose garbage is being collected.

    Raises EngineError where it may be another client's that makes a run, or a service, of that name now.
    """
    age = client.now() - moment(str(there["metadata"]["creationTimestamp"]))
    if not there["metadata"].get("ownerReferences") and age < STARTING:
        raise _is_starting(name, namespace, f"if that one died, the name is free in {STARTING - age:.0f} s; ")


def is_not_ours(kind: str, name: str, namespace: str, ours: str = "run") -> EngineError:
    """What to raise for an object of somebody else's that has a name which ``ours`` needs."""
    return EngineError(f"{kind} {name} exists already in namespace {namespace}, and allranks did not make it; "
                       f"give this {ours} another name: '--name OTHER'")  # fmt: skip


def _is_starting(name: str, namespace: str, otherwise: str = "") -> EngineError:
    return EngineError(f"another allranks has just begun to start a run named {name} in namespace {namespace}; "
                       f"{otherwise}watch it with 'allranks logs -f {name}', or give this one another name: "
                       "'--name OTHER'")  # fmt: skip


def _remove_leftovers(client: Client, plan: Plan, namespace: str) -> None:
    """What has the names that are kept for a run's objects, once the run's name is ours."""
    taken = files_of(plan)
    for document in plan.documents[:-1]:
        name, kind = document["metadata"]["name"], kind_of(document)
        if document is not taken and name in (delivery.name_of(plan.name), keeper.name_of(plan.name)):
            client.delete(kind, name, namespace)


def remove(client: Client, main: Object, namespace: str, timeout: float) -> list[Object]:
    """Delete a run's object with all that it owns; return the pods that are still there after ``timeout`` seconds."""
    kind, name, uid = kind_of(main), str(main["metadata"]["name"]), str(main["metadata"]["uid"])
    run = (main["metadata"].get("labels") or {}).get(delivery.RUN, name)
    client.delete(kind, name, namespace, uid=uid)
    until = time.monotonic() + timeout
    while True:
        left = client.has_any(POD, namespace, labels=f"{delivery.RUN}={run}")
        there = _uid(client, kind, name, namespace)
        if there not in ("", uid):
            return []  # somebody has the name by now, and the pods
        if not left and not there:
            return []
        if time.monotonic() > until:
            return client.list(POD, namespace, labels=f"{delivery.RUN}={run}")
        time.sleep(POLL)


def remove_all(client: Client, main: Object, namespace: str, timeout: float) -> list[Object]:
    """The same, and the agent's files, which a client that died before it could say so has left without an owner.

    Not where others may start a run of that name at the same moment: the Secret is deleted by its name alone.
    """
    run = str((main["metadata"].get("labels") or {}).get(delivery.RUN, main["metadata"]["name"]))
    files = _uid(client, CONFIGMAP, delivery.name_of(run), namespace)
    left = remove(client, main, namespace, timeout)
    if not left and files and _uid(client, CONFIGMAP, delivery.name_of(run), namespace) == files:
        client.delete(SECRET, delivery.name_of(run), namespace)
        client.delete(CONFIGMAP, delivery.name_of(run), namespace, uid=files)
    return left


def _uid(client: Client, kind: Kind, name: str, namespace: str) -> str:
    """Empty where there is none, or where nobody may look, as by Roles of older versions."""
    try:
        return str(client.get(kind, name, namespace)["metadata"]["uid"])
    except (Missing, NoRight):
        return ""
