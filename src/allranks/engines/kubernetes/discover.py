"""What is installed in a cluster: one call for its kinds, and one for a TrainJob's fields where somebody needs them."""

from __future__ import annotations

from typing import Any, get_args

from allranks.engines.kubernetes.client import Client
from allranks.engines.kubernetes.cluster import Cluster, Gang, Patches
from allranks.engines.kubernetes.kinds import JOBSET, TRAINJOB
from allranks.engines.kubernetes.refusals import Unreachable

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
GROUPS: dict[str, Gang] = {
    "kueue.x-k8s.io": "kueue",
    "scheduling.volcano.sh": "volcano",
    "scheduling.x-k8s.io": "coscheduling",
    "scheduling.run.ai": "kai",
}
"""By which API group a gang scheduler is known; the first that is there is the one that is used."""


def discover(client: Client) -> Cluster:
    """Raises Unreachable, Refused."""
    there = kinds(client)
    groups = {version.partition("/")[0] for version, _ in there}
    gangs: list[Gang] = [name for group, name in GROUPS.items() if group in groups]
    trainer = (TRAINJOB.api_version, TRAINJOB.kind) in there
    return Cluster(
        namespace=client.namespace,
        gang=gangs[0] if gangs else "",
        jobset=(JOBSET.api_version, JOBSET.kind) in there,
        patches=_patches(client) if trainer else "runtimePatches",
    )


def kinds(client: Client) -> set[tuple[str, str]]:
    """Every kind that the cluster knows, as (apiVersion, kind)."""
    answer = client.page("/apis", AGGREGATED)
    return {
        (f"{group['metadata']['name']}/{version['version']}", resource.get("responseKind", {}).get("kind", ""))
        for group in answer.get("items") or ()
        for version in group.get("versions") or ()
        for resource in version.get("resources") or ()
    }


def _patches(client: Client) -> Patches:
    """The field of a TrainJob that changes its runtime's pods, by the schema of the version that is installed."""
    try:
        schemas = client.page(f"/openapi/v3/apis/{TRAINJOB.api_version}")["components"]["schemas"]
    except (Unreachable, KeyError, ValueError):
        return "runtimePatches"
    spec: dict[str, Any] = next(
        (schema["properties"]["spec"] for schema in schemas.values() if _is_trainjob(schema)), {}
    )
    return next((name for name in get_args(Patches) if name in spec.get("properties", {})), "runtimePatches")


def _is_trainjob(schema: dict[str, Any]) -> bool:
    return any(one.get("kind") == TRAINJOB.kind for one in schema.get("x-kubernetes-group-version-kind") or ())
