"""A container that a webhook has put beside the ranks', and that does not end with them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from allranks import engines
from allranks.engines.engine import Run
from allranks.engines.kubernetes import client as api
from allranks.spec.load import load_job
from tests.cluster.engines.conftest import Space
from tests.cluster.engines.kubectl import kubectl
from tests.cluster.images.kinds import BASE

PROXY = {"name": "proxy", "image": BASE, "command": ["sleep", "600"]}
PATIENCE = 60.0  # seconds: images are there


@pytest.mark.parametrize("code", [0, 3])
def test_who_follows_a_gang_that_ended_waits_for_no_sidecar(space: Space, code: int) -> None:
    spec = space.spec(run=["sh", "-c", f"sleep 2; exit {code}"], failure={"restarts": 0, "grace": "2s"})
    run = start_with_proxy(spec)
    assert run.wait(PATIENCE), run.status()
    assert run.status().exit_code == code
    status = space.status()
    assert (status["phase"], status["exit_code"]) == ("failed" if code else "succeeded", code)
    assert any("but container proxy of pod gang-w-0-0-" in note for note in status["notes"]), status["notes"]
    assert space.allranks("cancel", "gang").returncode == 0
    assert not kubectl("-n", space.name, "get", "pod,jobset", "-o", "name")
    assert space.status()["phase"] == status["phase"]


def start_with_proxy(spec: Path) -> Run:
    api.connect.cache_clear()  # it may be of another test's kubeconfig
    jobset = engines.get("jobset")
    plan = jobset.plan(load_job(spec), spec.parent)
    *others, made = (dict(deepcopy(document)) for document in plan.documents)
    for job in made["spec"]["replicatedJobs"]:
        job["template"]["spec"]["template"]["spec"]["containers"].append(PROXY)
    return jobset.submit(replace(plan, documents=(*others, made)), detach=False)
