"""A plan is judged by the API server, which makes nothing: every object, and the pods that an operator would make.

An operator's kind may hold any pods at all (an MPIJob's schema says nothing of them), and what a quota or a security
standard has against them its operator learns only later; so one pod of each kind is asked for as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from allranks.engines.kubernetes import submit
from allranks.engines.kubernetes.client import Client
from allranks.engines.kubernetes.refusals import NoRight, Refused

if TYPE_CHECKING:
    from allranks.engines.engine import Plan


def check(client: Client, plan: Plan) -> list[str]:
    """Raises EngineError for the first object that would be refused; returns what could not be judged, and why."""
    documents = submit.in_order(plan)
    return [*check_all(client, documents), *_check_pods(client, documents)]


def check_all(client: Client, documents: Iterable[Mapping[str, Any]]) -> list[str]:
    """The same of some objects, in the order in which they would be made."""
    notes: list[str] = []
    before: list[str] = []
    for document in documents:
        try:
            client.create(document, str(document["metadata"]["namespace"]), dry_run=True)
        except Refused as refused:
            if refused.why == "AlreadyExists":
                continue  # what is there is dealt with when the run is made
            if not (submit.is_not_seen_yet(refused) and any(name in str(refused) for name in before)):
                raise
            notes.append(  # Trainer's, which misses the runtime that the plan makes first
                f"{document['kind']} {document['metadata']['name']}: its schema takes it; its operator's own rules "
                "could not be asked, as they look for what is made before it"
            )
        before.append(str(document["metadata"]["name"]))
    return notes


def _check_pods(client: Client, documents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    ours = [one for one in documents if one["kind"] == "ServiceAccount"]
    for pod in pods(documents):
        if ours:  # a pod may not be made before its account
            pod["spec"].pop("serviceAccountName", None)
        try:
            client.create(pod, str(pod["metadata"]["namespace"]), dry_run=True)
        except NoRight:
            yield "its pods were not judged: that needs the right to create pods"
            return
        except Refused as refused:
            if "exceeded quota" not in str(refused):
                raise
            yield f"its pods would have to wait: {refused}"


def pods(documents: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One pod of each kind that these objects would have made."""
    found: list[dict[str, Any]] = []
    for document in documents:
        for template in _templates(document):
            named = {"name": f"{document['metadata']['name']}-pod", "namespace": document["metadata"]["namespace"]}
            spec = {"restartPolicy": "Never", **template["spec"]}
            metadata = {**template.get("metadata", {}), **named}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
            if pod not in found:
                found.append(pod)
    return found


def _templates(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        for item in value:
            yield from _templates(item)
    elif isinstance(value, Mapping):
        if isinstance(value.get("spec"), Mapping) and "containers" in value["spec"]:
            yield value
        for item in value.values():
            yield from _templates(item)
