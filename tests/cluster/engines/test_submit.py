"""A run is made whole or not at all; what cannot be undone is named."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from allranks.engines.engine import ONLY_REMEMBERED
from allranks.engines.kubernetes.kinds import CONFIGMAP, JOBSET
from allranks.engines.kubernetes.rights import Right, rights
from tests.cluster.engines.conftest import PATIENCE, Space
from tests.cluster.engines.kubectl import apply, kubectl
from tests.cluster.engines.test_pending import QUOTA as NO_PODS
from tests.cluster.engines.test_rights import become, kubeconfig_of_somebody

ENDS = ["sh", "-c", "echo rank $RANK"]
OURS = {"allranks.dev/run": "gang", "allranks.dev/engine": "jobset"}
LOST = r"another allranks has just begun to start a run named gang in|a run named gang is alive in namespace"


def without(verb: str, kind: object) -> list[Right]:
    return [
        replace(one, verbs=tuple(had for had in one.verbs if had != verb)) if one.kind == kind else one
        for one in rights([JOBSET])
    ]


def ours(space: Space) -> list[str]:
    return kubectl(
        "-n", space.name, "get", "secret,configmap,jobset,pod", "-l", "allranks.dev/run", "-o", "name"
    ).split()


def gone(space: Space) -> None:
    """Pods take their grace to go."""
    until = time.monotonic() + 60
    while left := ours(space):
        assert time.monotonic() < until, left
        time.sleep(0.5)


def test_what_was_made_goes_when_the_engines_object_is_refused(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    become(space, monkeypatch, without("create", JOBSET))
    done = space.allranks("run", "--engine", "jobset", str(space.spec()))
    assert (done.returncode, "no right to create jobsets" in done.stderr) == (69, True), done.stderr
    gone(space)


def test_a_run_that_cannot_be_made_whole_is_undone(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    become(space, monkeypatch, without("patch", CONFIGMAP))
    done = space.allranks("run", "--engine", "jobset", str(space.spec()))
    assert (done.returncode, "no right to patch configmaps" in done.stderr) == (69, True), done.stderr
    assert "left behind" not in done.stderr
    gone(space)


def test_a_name_is_free_again_once_its_run_is_over_and_not_before(space: Space) -> None:
    spec = space.spec(run=["true"])
    assert space.allranks("run", "--engine", "jobset", str(spec)).returncode == 0
    space.start("jobset", space.spec())
    for engine in ("jobset", "pytorchjob"):
        done = space.allranks("run", "--engine", engine, str(spec))
        assert done.returncode == 69
        assert f"a run named gang is alive in namespace {space.name} (engine jobset)" in done.stderr
    assert space.allranks("cancel", "gang").returncode == 0


def test_deleting_the_engines_object_deletes_all_and_status_remembers(space: Space) -> None:
    space.start("jobset", space.spec())
    space.until(lambda status: status["phase"] == "running")
    kubectl("-n", space.name, "delete", "jobset", "gang")
    status = space.status()
    assert (status["phase"], status["notes"]) == ("cancelled", [ONLY_REMEMBERED])
    gone(space)


def test_a_plan_is_judged_by_the_api_server_without_making_anything(space: Space) -> None:
    spec = str(space.spec(engines={"jobset": {"manifest": {"spec": {"noSuchField": 1}}}}))
    done = space.allranks("plan", "--check", "--engine", "jobset", spec)
    assert done.returncode == 69
    assert "the JobSet that is installed has no field spec.noSuchField" in done.stderr
    good = space.allranks("plan", "--check", "--engine", "jobset", str(space.spec(name="good")))
    assert "the cluster would take ConfigMap good-allranks, Secret good-allranks, JobSet good" in good.stderr
    assert ours(space) == []


def test_a_check_asks_for_the_pods_too_and_says_what_nobody_could_judge(space: Space) -> None:
    apply(space.name, NO_PODS)
    good = space.allranks("plan", "--check", "--engine", "trainjob", str(space.spec()))
    assert "the cluster would take ConfigMap gang-allranks, Secret gang-allranks, TrainingRuntime gang" in good.stderr
    assert "TrainJob gang: its schema takes it; its operator's own rules could not be asked" in good.stderr
    assert "its pods would have to wait: Pod gang-pod: the quota of namespace" in good.stderr
    spec = str(space.spec(schedule={"namespace": space.name, "priority": "nope"}))
    bad = space.allranks("plan", "--check", "--engine", "mpijob", spec)
    assert (bad.returncode, "no PriorityClass with name nope" in bad.stderr) == (69, True), bad.stderr
    assert "no right" not in bad.stderr
    assert ours(space) == []


def test_credentials_that_have_expired_are_said(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig_of_somebody(space, token="of-yesterday")))
    done = space.allranks("run", "--engine", "jobset", str(space.spec()))
    assert done.returncode == 69
    assert "does not accept the credentials of context" in done.stderr


def test_what_a_killed_client_has_left_without_an_owner_goes_when_the_run_is_cancelled(space: Space) -> None:
    space.start("jobset", space.spec(resources={"memory": "900Ti"}))
    for kind in ("secret", "configmap"):
        change = '{"metadata": {"ownerReferences": null}}'
        kubectl("-n", space.name, "patch", kind, "gang-allranks", "--type=merge", "-p", change)
    done = space.allranks("cancel", "gang")
    assert done.returncode == 0, done.stderr
    assert kubectl("-n", space.name, "get", "secret,configmap,jobset", "-l", "allranks.dev/run", "-o", "name") == ""


@pytest.mark.parametrize("engines", [("jobset", "jobset"), ("mpijob", "jobset"), ("trainjob", "trainjob")])
def test_of_two_that_start_one_name_at_the_same_moment_exactly_one_does(space: Space, engines: tuple[str, str]) -> None:
    spec = str(space.spec(run=ENDS, failure={"restarts": 0, "grace": "1s"}))
    for turn in range(3):  # the second and third time a finished run must go first
        done = [racing.wait() for racing in [Racing(space, engine, spec) for engine in engines]]
        (won,) = [one for one in done if one.returncode == 0]
        (lost,) = [one for one in done if one.returncode != 0]
        assert sorted(won.stdout.splitlines()) == [f"rank {rank} | rank {rank}" for rank in range(4)], won.stderr
        assert lost.returncode == 69, lost.stderr
        assert re.search(LOST, lost.stderr), lost.stderr
        assert "left behind" not in lost.stderr
        print(f"turn {turn}: {lost.stderr.splitlines()[-1]}")


def test_what_a_dead_client_left_is_given_up_after_a_while_and_what_a_living_one_made_is_not(space: Space) -> None:
    young = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gang-allranks", "labels": OURS}}
    apply(space.name, young)
    done = space.allranks("run", "--engine", "jobset", str(space.spec(run=["true"])))
    assert (done.returncode, "if that one died, the name is free in" in done.stderr) == (69, True), done.stderr
    assert "configmap/gang-allranks" in ours(space)
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "gang", "uid": "gone"}
    young["metadata"]["ownerReferences"] = [owner]  # type: ignore[index]
    apply(space.name, young)
    done = space.allranks("run", "--engine", "jobset", str(space.spec(run=["true"])))
    assert done.returncode == 0, done.stderr


class Racing:
    """A client that runs beside another one."""

    def __init__(self, space: Space, engine: str, spec: str) -> None:
        argv = [sys.executable, "-m", "allranks", "run", "--engine", engine, spec]
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait(self) -> subprocess.CompletedProcess[str]:
        out, err = self._process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(self._process.args, self._process.returncode, out, err)
