"""Whatever job the spec takes, the API server takes too: of every engine, by server-side dry-run."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from pydantic import ValidationError

from allranks.engines.kubernetes import client as api
from allranks.engines.kubernetes import submit
from allranks.engines.kubernetes.check import check_all, pods
from allranks.engines.kubernetes.client import Client
from allranks.engines.kubernetes.cluster import Cluster
from allranks.engines.kubernetes.kinds import TRAINING_RUNTIME
from allranks.engines.kubernetes.refusals import Refused
from allranks.errors import SpecError
from allranks.spec.job import Job
from tests.cluster.engines.any_job import ANY
from tests.cluster.engines.conftest import Space
from tests.cluster.processes import wait
from tests.engines.kubernetes.jobs import plan
from tests.engines.runai import stand_in

Documents = list[dict[str, Any]]
EXAMPLES = 100
SHAPES: dict[str, tuple[str, Cluster]] = {
    "jobset": ("jobset", Cluster()),
    "plain job": ("jobset", Cluster(jobset=False)),
    "mpijob": ("mpijob", Cluster()),
    "pytorchjob": ("pytorchjob", Cluster()),
    "trainjob": ("trainjob", Cluster()),
    "runai 1": ("runai", Cluster(runai=1)),
    "runai 2": ("runai", Cluster()),
}
NUMBERS = itertools.count()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_api_server_takes_whatever_job_the_spec_does(space: Space, shape: str) -> None:
    engine, cluster = SHAPES[shape]
    api.connect.cache_clear()  # it may be of another test's kubeconfig
    client, judged = api.connect(), 0

    @given(fields=ANY)
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def is_taken(fields: dict[str, Any]) -> None:
        nonlocal judged
        documents = documents_of(engine, fields, cluster, space.name)
        judge(client, documents)
        judged += 1

    is_taken()
    assert judged >= EXAMPLES


def documents_of(engine: str, fields: dict[str, Any], cluster: Cluster, namespace: str) -> Documents:
    """What would be made, in order. A job that the spec or the plan refuses is none of this test."""
    if engine == "trainjob":  # a runtime of the last example's name may still be remembered
        fields = {**fields, "name": f"{fields['name'][:34]}x{next(NUMBERS)}"}
    if engine == "runai":
        fields = {**fields, "env_from": []}
    schedule = {**fields.get("schedule", {}), "namespace": namespace}
    try:
        documents = submit.in_order(plan(engine, Job.model_validate({**fields, "schedule": schedule}), cluster))
    except (ValidationError, SpecError):
        assume(False)
    return documents if engine != "runai" else [*documents[:-1], by_runai(documents[-1], cluster, namespace)]


def by_runai(submitted: dict[str, Any], cluster: Cluster, namespace: str) -> dict[str, Any]:
    """The PyTorchJob that Run:ai makes of a command line, by our stand-in for it."""
    made = stand_in.job_of(submitted["argv"][1:], str(cluster.runai))
    made["metadata"]["namespace"] = namespace
    return made


def judge(client: Client, documents: Documents) -> None:
    """All of them, and their pods: an operator's kind says next to nothing of what those may be."""
    *others, main = documents
    assert check_all(client, others) == []
    assert check_all(client, map(as_template, pods(documents))) == []
    if others[-1]["kind"] != TRAINING_RUNTIME.kind:
        assert check_all(client, [main]) == []
        return
    name, namespace = others[-1]["metadata"]["name"], others[-1]["metadata"]["namespace"]
    client.create(others[-1], namespace)  # Trainer judges a TrainJob by the runtime that is there
    try:
        wait("the runtime to be seen", lambda: is_taken_by_trainer(client, main), 30, every=0.02)
    finally:
        client.delete(TRAINING_RUNTIME, name, namespace)


def is_taken_by_trainer(client: Client, main: dict[str, Any]) -> bool:
    try:
        client.create(main, main["metadata"]["namespace"], dry_run=True)
    except Refused as refused:
        if not submit.is_not_seen_yet(refused):
            raise
        return False
    return True


def as_template(pod: dict[str, Any]) -> dict[str, Any]:
    """The same pod as an object that needs no service account or priority class to be there."""
    template = {"metadata": {**pod["metadata"], "name": ""}, "spec": {**pod["spec"], "restartPolicy": "Always"}}
    metadata = {"name": "any", "namespace": pod["metadata"]["namespace"]}
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata, "template": template}
