"""What this client remembers of runs in clusters: the last that it saw of each, for when the cluster has it no more.

One file a run below ``$XDG_STATE_HOME/allranks/clusters/CONTEXT/NAMESPACE``; no secrets are in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from allranks.engines.kubernetes.pods import Object
from allranks.engines.local.rundir import state_home
from allranks.node.files import write_whole
from allranks.node.status import Status


@dataclass(frozen=True)
class Seen:
    """A run as it was seen last. ``uid`` is its object's, which tells two runs of one name apart."""

    namespace: str
    uid: str
    status: Status


def keep(context: str, seen: Seen) -> None:
    """Remember; where that cannot be written, the cluster alone has it."""
    path = _path(context, seen.namespace, seen.status.name)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(str(path), json.dumps({"uid": seen.uid, "status": seen.status.to_json()}))
    except OSError:
        pass  # a full disk here must not end a gang elsewhere


def read(context: str, namespace: str, name: str) -> Seen | None:
    """What was seen last of a run; None for one that this client never saw."""
    try:
        found = json.loads(_path(context, namespace, name).read_text(encoding="utf-8"))
        return Seen(namespace, str(found["uid"]), Status.from_json(found["status"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def of(context: str, main: Object) -> Status | None:
    """How the run of that very object was seen last; nothing of another one of its name."""
    metadata = main["metadata"]
    seen = read(context, str(metadata["namespace"]), str(metadata["name"]))
    return seen.status if seen is not None and seen.uid == metadata["uid"] else None


def remember(context: str, main: Object, status: Status) -> None:
    """Keep how the run of that object stands."""
    keep(context, Seen(str(main["metadata"]["namespace"]), str(main["metadata"]["uid"]), status))


def engine(context: str, name: str) -> str:
    """The engine of the run of that name that was seen last; empty where none was."""
    seen = (read(context, namespace, name) for namespace in namespaces(context, name))
    return next((one.status.engine for one in seen if one is not None), "")


def namespaces(context: str, name: str) -> Iterator[str]:
    """Where runs of that name were seen, the newest first."""
    found = list(_root(context).glob(f"*/{quote(name, safe='')}.json"))
    for path in sorted(found, key=os.path.getmtime, reverse=True):
        yield path.parent.name


def all_namespaces(context: str) -> list[str]:
    """Every namespace of a cluster that this client has seen a run in."""
    return sorted(path.name for path in _root(context).glob("*") if path.is_dir())


def _path(context: str, namespace: str, name: str) -> Path:
    return _root(context) / namespace / f"{quote(name, safe='')}.json"


def _root(context: str) -> Path:
    return state_home() / "clusters" / quote(context, safe="")
