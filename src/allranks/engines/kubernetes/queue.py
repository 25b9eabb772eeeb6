"""Where a suspended gang stands in its queue, as Kueue tells it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from allranks.engines.kubernetes.client import Client, Object
from allranks.engines.kubernetes.conditions import is_suspended
from allranks.engines.kubernetes.kinds import WORKLOAD, Kind
from allranks.engines.kubernetes.reasons import short
from allranks.engines.kubernetes.refusals import NotInstalled, Refused
from allranks.errors import first_line

VERSIONS = (WORKLOAD, Kind("kueue.x-k8s.io/v1beta2", "Workload", "workloads", "Kueue"))
NEVER = ("insufficient quota", "maximum capacity")
"""Kueue's words for more than the whole of a quota; of a quota in use it says: insufficient unused quota."""
NAME = "kueue.x-k8s.io/queue-name"


def why_suspended(client: Client, main: Object, namespace: str) -> str:
    """Why its pods are held back; empty when they are not. One call."""
    if not is_suspended(main):
        return ""
    queue = (main["metadata"].get("labels") or {}).get(NAME, "")
    if not queue:
        return "it is suspended: somebody has set its suspend field"
    try:
        return _told(_workloads(client, namespace), main, queue)
    except NotInstalled:
        return f"it is suspended for queue {queue}, and this cluster has no Kueue that would admit it"
    except Refused as refused:
        return f"it waits in queue {queue}; at which place cannot be seen: {first_line(refused)}"


def _workloads(client: Client, namespace: str) -> list[Object]:
    try:
        return client.list(VERSIONS[0], namespace)
    except NotInstalled:
        return client.list(VERSIONS[1], namespace)


def _told(workloads: Sequence[Object], main: Object, queue: str) -> str:
    uid = main["metadata"]["uid"]
    ours = next((one for one in workloads if _owner(one) == uid), None)
    if ours is None:
        return f"it waits for Kueue to look at it (queue {queue})"
    waiting = [one for one in workloads if one["spec"].get("queueName") == queue and not _is_admitted(one)]
    place = sum(_turn(one) <= _turn(ours) for one in waiting)
    why = _condition(ours, "QuotaReserved").get("message") or _condition(ours, "Admitted").get("message") or ""
    if any(words in why for words in NEVER):
        return short(f"queue {queue} can never admit it: {why}")
    where = f"it waits in queue {queue} at place {place} of {len(waiting)} in namespace {main['metadata']['namespace']}"
    return short(f"{where}: {why}" if why else where)


def _owner(workload: Object) -> str:
    owners = workload["metadata"].get("ownerReferences") or [{}]
    return str(owners[0].get("uid", ""))


def _is_admitted(workload: Object) -> bool:
    return any(_condition(workload, kind).get("status") == "True" for kind in ("QuotaReserved", "Finished"))


def _turn(workload: Object) -> tuple[int, str, str]:
    """Kueue's own order: by priority, then by age."""
    metadata = workload["metadata"]
    return -int(workload["spec"].get("priority") or 0), metadata["creationTimestamp"], metadata["name"]


def _condition(workload: Object, kind: str) -> dict[str, Any]:
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == kind), {})
