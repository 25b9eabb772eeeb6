"""What may be written into an operator's objects: the fields of their kinds, as the API server has them."""

from __future__ import annotations

import json

import pytest

from tests.cluster import contract
from tests.cluster.cluster import Cluster
from tests.cluster.namespace import Object

KINDS = {
    "mpi-operator": ["mpijobs.kubeflow.org"],
    "trainer": ["trainjobs.trainer.kubeflow.org", "trainingruntimes.trainer.kubeflow.org"],
    "training-operator": ["pytorchjobs.kubeflow.org"],
    "jobset": ["jobsets.jobset.x-k8s.io"],
    "kuberay": ["rayservices.ray.io", "rayjobs.ray.io"],
    "kueue": ["localqueues.kueue.x-k8s.io", "clusterqueues.kueue.x-k8s.io"],
}
DEEP = 3  # levels below spec; pod templates are Kubernetes' own


@pytest.mark.parametrize("operator", KINDS)
def test_the_fields_of_an_operators_kinds_are_those_of_its_contract(
    operator: str, cluster: Cluster, pytestconfig: pytest.Config
) -> None:
    seen = {kind: fields_of(json.loads(cluster.kubectl("get", "crd", kind, "-o", "json"))) for kind in KINDS[operator]}
    contract.compare(operator, cluster.versions[operator], "fields", seen, bool(pytestconfig.getoption("--record")))


def fields_of(kind: Object) -> Object:
    """Of each version of the kind that is served: the names below spec."""
    return {
        version["name"]: below(version["schema"]["openAPIV3Schema"]["properties"]["spec"], DEEP)
        for version in kind["spec"]["versions"]
        if version["served"]
    }


def below(schema: Object, levels: int) -> Object | str:
    """Field names down to ``levels``; of what is deeper or has no names, the type."""
    inner = schema.get("items", schema)
    properties = inner.get("properties")
    if not properties or not levels:
        return str(schema.get("type", "any"))
    return {name: below(one, 0 if name == "template" else levels - 1) for name, one in properties.items()}
