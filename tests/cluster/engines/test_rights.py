"""Somebody who has the smallest Role, and nothing else, can do everything; without exec all but the ranks is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from allranks.engines.engine import Plan
from allranks.engines.kubernetes import kubeconfig
from allranks.engines.kubernetes.client import Client
from allranks.engines.kubernetes.kinds import JOBSET, TRAINJOB
from allranks.engines.kubernetes.rights import POD_EXEC, Right, for_force_delete, for_plain_jobs, rights, role
from allranks.engines.trainjob.runtime import judge
from tests.cluster.engines.conftest import Space
from tests.cluster.engines.kubectl import apply, kubectl


def become(space: Space, monkeypatch: pytest.MonkeyPatch, wanted: Sequence[Right]) -> None:
    """From here on be a service account with these rights in the test's namespace."""
    about = {"name": "somebody", "namespace": space.name}
    apply(space.name, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about})
    apply(space.name, role("somebody", space.name, wanted))
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": about,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "somebody"},
        "subjects": [{"kind": "ServiceAccount", **about}],
    }  # fmt: skip
    apply(space.name, binding)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig_of_somebody(space)))


def kubeconfig_of_somebody(space: Space, token: str = "") -> Path:
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    known: dict[str, Any] = yaml.load(space.cluster.kubeconfig)
    context = next(one for one in known["contexts"] if one["name"] == known["current-context"])
    token = token or kubectl("-n", space.name, "create", "token", "somebody").strip()
    known["users"].insert(0, {"name": "somebody", "user": {"token": token}})
    context["context"].update(user="somebody", namespace=space.name)
    path = space.folder / "kubeconfig"
    with path.open("w") as file:
        yaml.dump(known, file)
    return path


def test_the_smallest_role_is_enough(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    become(space, monkeypatch, rights([JOBSET]))
    done = space.allranks("up", "--engine", "jobset", str(space.spec()))
    assert done.returncode == 0, done.stderr
    done = space.allranks("exec", "gang", "--", "sh", "-c", "echo rank $RANK")
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} | rank {rank}" for rank in range(4)], done.stderr
    done = space.allranks("shell", "gang", "--node", "1", stdin="echo node $NODE_RANK; exit 3\n")
    assert (done.stdout, done.returncode) == ("node 1\n", 3)
    assert space.status()["notes"] == []
    assert space.allranks("cancel", "gang").returncode == 0
    assert space.status()["phase"] == "cancelled"


def test_without_the_right_to_exec_it_is_said_what_is_not_shown(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    become(space, monkeypatch, [right for right in rights([JOBSET]) if right.kind != POD_EXEC])
    space.start("jobset", space.spec())
    status = space.until(lambda status: any("pods/exec" in note for note in status["notes"]))
    assert status["phase"] == "starting"
    assert space.allranks("cancel", "gang").returncode == 0
    assert space.status()["phase"] == "cancelled"


def test_a_right_that_is_missing_is_named_with_its_rule(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    become(space, monkeypatch, [right for right in rights([JOBSET]) if right.kind != JOBSET])
    done = space.allranks("run", "--engine", "jobset", str(space.spec()))
    assert done.returncode == 69
    assert "no right to get jobsets (jobset.x-k8s.io)" in done.stderr
    assert '{apiGroups: ["jobset.x-k8s.io"], resources: [jobsets], verbs: [get]}' in done.stderr
    assert not kubectl("-n", space.name, "get", "secret,configmap", "-l", "allranks.dev/run", "-o", "name")


def test_with_the_printed_role_a_gang_may_be_given_the_right_to_free_itself(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = space.spec(failure={"force_delete": True, "grace": "2s"})
    words = ("doctor", "--rights", "--engine", "jobset", "--spec", str(spec), "-o", "json")
    printed = json.loads(space.allranks(*words).stdout)
    assert printed["metadata"]["namespace"] == space.name
    become(space, monkeypatch, [*rights([JOBSET], queue=True), *for_plain_jobs(), *for_force_delete()])
    apply(space.name, {**printed, "metadata": {"name": "somebody"}})
    space.start("jobset", spec)
    space.until(lambda status: status["phase"] == "running")
    assert space.allranks("cancel", "gang").returncode == 0


def test_a_runtime_that_may_not_be_looked_at_is_told_in_a_note(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    become(space, monkeypatch, rights([TRAINJOB]))
    asks = {"spec": {"runtimeRef": {"kind": "ClusterTrainingRuntime", "name": "x"}}}
    (note,) = judge(Client(kubeconfig.load()), Plan("gang", "trainjob", (asks,)))
    assert "ClusterTrainingRuntime x was not looked at: that needs the right to list clustertrainingruntimes" in note
