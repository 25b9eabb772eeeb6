"""What each engine makes of a job: as a person would read it, and for any job at all.

To write the golden files anew: GOLDEN_FILES=write pytest tests/engines/kubernetes/test_plans.py
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from ruamel.yaml import YAML

from allranks.engines.kubernetes import delivery, render
from allranks.engines.kubernetes.cluster import Cluster
from allranks.errors import SpecError
from allranks.lint.files import lint
from allranks.node.gang import Gang
from allranks.spec import write
from allranks.spec.job import Job
from tests.engines.kubernetes.jobs import ENGINES, anything, job, plan

GOLDEN = Path(__file__).parent / "golden"
OVER_SSH = {"engines": {"mpijob": {"start": "mpirun"}}}
SHAPES: dict[str, tuple[str, dict[str, Any], Cluster]] = {
    "jobset": ("jobset", {}, Cluster()),
    "jobset-where-there-is-none": ("jobset", {}, Cluster(jobset=False)),
    "mpijob-agents": ("mpijob", {}, Cluster()),
    "mpijob-launcher-mpirun": ("mpijob", {"launcher": "mpirun"}, Cluster()),
    "mpijob-over-ssh": ("mpijob", OVER_SSH, Cluster()),
    "trainjob": ("trainjob", {}, Cluster()),
    "trainjob-runtime-2.2": ("trainjob", {"engines": {"trainjob": {"runtime": "torch"}}}, Cluster()),
    "trainjob-runtime-2.1": (
        "trainjob", {"resources": {"gpus": 2}, "engines": {"trainjob": {"runtime": "torch"}}},
        Cluster(patches="podTemplateOverrides"),
    ),
    "pytorchjob": ("pytorchjob", {}, Cluster()),
    "force-delete": ("pytorchjob", {"failure": {"force_delete": True}}, Cluster()),
    "runai-1": ("runai", {"engines": {"runai": {"project": "a", "interactive": True}}}, Cluster(runai=1)),
    "runai-2": ("runai", {"engines": {"runai": {"project": "a"}}}, Cluster()),
    "kueue": ("jobset", {"schedule": {"queue": "q", "gang": "kueue"}}, Cluster()),
    "volcano": ("mpijob", {"schedule": {"queue": "q", "gang": "volcano"}}, Cluster()),
    "coscheduling": ("trainjob", {"schedule": {"gang": "coscheduling"}}, Cluster()),
    "kai": ("pytorchjob", {"schedule": {"queue": "q", "gang": "kai"}}, Cluster()),
}  # fmt: skip
"""File name to engine, changes of the classic job, and cluster."""


@pytest.mark.parametrize("shape", SHAPES)
def test_a_classic_job_becomes_what_a_person_would_have_written(shape: str) -> None:
    engine, changes, cluster = SHAPES[shape]
    made = plan(engine, job(**changes), cluster)
    documents = made.documents[1:] if shape != "jobset" else made.documents  # the ConfigMap is the same for all
    text = "".join(f"# note: {note}\n" for note in made.notes) + write.documents(map(write.shortened, documents))
    text = text.replace(f"all {len(delivery.encoded_bundle())} characters", "all N characters")
    path = GOLDEN / f"{shape}.yaml"
    if os.environ.get("GOLDEN_FILES") == "write":
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_printed_is_what_is_submitted(shape: str) -> None:
    engine, changes, cluster = SHAPES[shape]
    documents = plan(engine, job(**changes), cluster).documents
    printed = YAML(typ="safe", pure=True).load_all(write.documents(documents))
    assert [json.dumps(found) for found in printed] == [json.dumps(document) for document in documents]


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if not shape.startswith("runai")])
def test_our_own_linter_has_nothing_to_say(shape: str) -> None:
    engine, changes, cluster = SHAPES[shape]
    text = write.documents(plan(engine, job(**changes), cluster).documents)
    linted = lint(text, "plan.yaml", (2, 1) if shape.endswith("2.1") else (2, 2))
    assert [(found.rule, found.what, found.line) for found in linted.findings] == []
    assert (linted.unread, linted.nothing) == ([], "")


@pytest.mark.parametrize("engine", ENGINES)
@given(fields=anything)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_valid_job_has_a_plan_or_is_told_why_not(engine: str, fields: dict[str, Any]) -> None:
    made = Job.model_validate(fields)
    try:
        found = plan(engine, made)
    except SpecError:
        return
    assert not [note for note in found.notes if "\n" in note or "this engine has no such thing" in note]
    main = render.main_document(found)
    assert main["metadata"]["labels"][delivery.RUN] == made.name
    assert not any(empty in _values(document) for document in found.documents for empty in (None, ""))
    if engine != "runai":
        gang = Gang.from_json(json.loads(found.documents[0]["data"][delivery.PLAN]))
        assert (gang.argv, gang.nodes, dict(gang.env)) == (made.argv, made.nodes, made.env)
        assert json.loads(json.dumps(found.documents)) == list(found.documents)


def _values(value: Any) -> list[Any]:
    """All scalars; texts of the user's own may be empty, so those of annotations and volumes are left out."""
    if isinstance(value, dict):
        return [leaf for key, item in value.items() if key != "annotations" for leaf in _values(item)]
    return [leaf for item in value for leaf in _values(item)] if isinstance(value, list) else [value]


@pytest.mark.parametrize("version", [1, 2])
@given(fields=anything)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_shell_reads_the_words_of_the_runai_line_as_they_are(version: Any, fields: dict[str, Any]) -> None:
    fields = {**fields, "image": 'a\'b "c" $(d) `e`\\'.replace(" ", "_"), "env_from": []}
    made = plan("runai", Job.model_validate(fields), Cluster(runai=version)).documents[-1]
    script = 'runai() { printf "%s\\0" runai "$@"; }\n' + made["line"]
    said = subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout
    assert said.decode().split("\0")[:-1] == made["argv"]


@pytest.mark.parametrize("engine", ENGINES)
def test_no_plan_holds_the_secret(engine: str) -> None:
    secrets = [document for document in plan(engine, job()).documents if document["kind"] == "Secret"]
    assert len(secrets) == 1
    assert "data" not in secrets[0]
    assert delivery.SECRET not in secrets[0].get("stringData", {})


def test_the_config_map_fits_four_times_into_what_a_cluster_takes() -> None:
    config = plan("jobset", job()).documents[0]
    assert len(json.dumps(config)) < 2**20 / 4


def test_a_thousand_nodes_are_planned_and_printed_in_a_moment() -> None:
    delivery.encoded_bundle()
    began = time.process_time()
    made = plan("mpijob", job(nodes=1000, ranks_per_node=8, launcher="mpirun"))
    write.documents(made.documents)
    assert time.process_time() - began < 0.3
