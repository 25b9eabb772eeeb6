"""A run is made whole or not at all; what cannot be undone is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from allranks.engines.kubernetes.kinds import CONFIGMAP, JOBSET
from allranks.engines.kubernetes.rights import Right, rights
from tests.cluster.engines.conftest import Space
from tests.cluster.engines.kubectl import kubectl
from tests.cluster.engines.test_rights import become

pytestmark = pytest.mark.gang


def without(verb: str, kind: object) -> list[Right]:
    return [
        replace(one, verbs=tuple(had for had in one.verbs if had != verb)) if one.kind == kind else one
        for one in rights([JOBSET])
    ]


def ours(space: Space) -> list[str]:
    return kubectl(
        "-n", space.name, "get", "secret,configmap,jobset,pod", "-l", "allranks.dev/run", "-o", "name"
    ).split()


def test_what_was_made_goes_when_the_engines_object_is_refused(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    become(space, monkeypatch, without("create", JOBSET))
    done = space.allranks("run", "--engine", "jobset", str(space.spec()))
    assert (done.returncode, "no right to create jobsets" in done.stderr) == (69, True), done.stderr
    monkeypatch.undo()
    assert ours(space) == []


def test_what_cannot_be_removed_again_is_named(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    become(space, monkeypatch, without("patch", CONFIGMAP))
    done = space.allranks("run", "--engine", "jobset", str(space.spec()))
    assert done.returncode == 69
    assert "no right to patch configmaps" in done.stderr
    assert "left behind" not in done.stderr
    monkeypatch.undo()
    assert ours(space) == []


def test_a_name_is_free_again_once_its_run_is_over_and_not_before(space: Space) -> None:
    spec = space.spec(run=["true"])
    assert space.allranks("run", "--engine", "jobset", str(spec)).returncode == 0
    space.start("jobset", space.spec())
    done = space.allranks("run", "--engine", "jobset", str(spec))
    assert done.returncode == 69
    assert "a run named gang is alive in namespace" in done.stderr
    assert space.allranks("cancel", "gang").returncode == 0


def test_deleting_the_engines_object_deletes_all_and_status_remembers(space: Space) -> None:
    space.start("jobset", space.spec())
    space.until(lambda status: status["phase"] == "running")
    kubectl("-n", space.name, "delete", "jobset", "gang")
    status = space.status()
    assert (status["phase"], status["notes"]) == (
        "cancelled", ["the cluster has it no more: this is what this machine saw last"],
    )  # fmt: skip
    for _ in range(100):
        if not ours(space):
            break
        kubectl("-n", space.name, "get", "pods")
    assert ours(space) == []


def test_a_plan_is_judged_by_the_api_server_without_making_anything(space: Space) -> None:
    spec = str(space.spec(engines={"jobset": {"manifest": {"spec": {"noSuchField": 1}}}}))
    done = space.allranks("plan", "--check", "--engine", "jobset", spec)
    assert done.returncode == 69
    assert "the JobSet that is installed has no field spec.noSuchField" in done.stderr
    good = space.allranks("plan", "--check", "--engine", "jobset", str(space.spec(name="good")))
    assert "the cluster would take ConfigMap good-allranks, Secret good-allranks, JobSet good" in good.stderr
    assert ours(space) == []


def test_credentials_that_have_expired_are_said(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    become(space, monkeypatch, [])
    path = space.folder / "kubeconfig"
    text = path.read_text()
    token = text.split("token: ")[1].split()[0]
    Path(path).write_text(text.replace(token, token[:-20] + "A" * 20))
    done = space.allranks("run", "--engine", "jobset", str(space.spec()))
    assert done.returncode == 69
    assert "does not accept the credentials of context" in done.stderr
