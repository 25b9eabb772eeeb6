"""PyTorchJobs that Run:ai has made, with what allranks writes on its own objects.

Run:ai takes labels and annotations for the pods; its PyTorchJob has them in its pod template alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from allranks.engines.kubernetes import delivery
from allranks.engines.kubernetes.client import Client, Object
from allranks.engines.kubernetes.kinds import PYTORCHJOB, Kind

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

RUNAI = "runai"


class Adopting(Client):
    """A client that finds our marks on Run:ai's PyTorchJobs too; it has the ``plain`` one's line to the API server."""

    def __init__(self, plain: Client) -> None:
        self.access, self.namespace, self._plain = plain.access, plain.namespace, plain

    def _send(
        self, method: str, path: str, *, query: Mapping[str, str], body: Mapping[str, Any] | None = None,
        stream: bool = False, accept: str = "",
    ) -> BaseHTTPResponse:  # fmt: skip
        return self._plain._send(method, path, query=query, body=body, stream=stream, accept=accept)

    def now(self) -> float:
        return self._plain.now()

    def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        found = super().get(kind, name, namespace)
        return adopted(found) if kind == PYTORCHJOB else found

    def list(self, kind: Kind, namespace: str = "", *, labels: str = "", fields: str = "") -> list[Object]:
        if kind != PYTORCHJOB:
            return super().list(kind, namespace, labels=labels, fields=fields)
        found = [adopted(one) for one in super().list(kind, namespace, fields=fields)]
        return [one for one in found if one["metadata"]["labels"].get(delivery.ENGINE) == RUNAI]


def adopted(job: Object) -> Object:
    """The same with the marks of its pod template on itself."""
    replicas: dict[str, Any] = (job.get("spec") or {}).get("pytorchReplicaSpecs") or {}
    template = (replicas.get("Master") or {}).get("template") or {}
    pods, own = template.get("metadata") or {}, job["metadata"]
    marks = {part: {**_ours(pods.get(part)), **(own.get(part) or {})} for part in ("labels", "annotations")}
    return {**job, "metadata": {**own, **marks}}


def _ours(marks: Any) -> dict[str, str]:
    return {name: value for name, value in (marks or {}).items() if name.startswith(f"{delivery.PREFIX}/")}
