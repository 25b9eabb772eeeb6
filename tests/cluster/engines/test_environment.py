"""Every engine, and each way that mpijob has, tells ranks the same of themselves; no engine needs more than Python."""

from __future__ import annotations

import json
from typing import Any

import pytest

from allranks.node.environment import IDENTITY, SOMEBODY_ELSES
from tests.cluster.engines.conftest import ENGINES, Space
from tests.cluster.engines.kubectl import kubectl
from tests.cluster.images.kinds import BASE
from tests.cluster.namespace import OWNER

OVER_SSH = {"engines": {"mpijob": {"start": "mpirun"}}}
MPIRUN = {"launcher": "mpirun"}
STRICT = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
USER = {"container": {"securityContext": {"runAsUser": 1000, "runAsNonRoot": True, **STRICT}}}
# What a shell, mpirun's -x or a file of NAME=VALUE lines would spoil.
HARD = {
    "SPACES": " a  b ", "QUOTES": "'\"`", "LINES": "one\ntwo\n", "DOLLAR": "$HOME ${PATH} $(id)", "EMPTY": "",
    "UNICODE": "\u00e9\u65e5\U0001f600", "EQUALS": "a=b=c", "BACKSLASHES": "\\n\\\\", "OMPI_MINE": "x;y,z",
}  # fmt: skip
WHO = """
import json, os, socket
known = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HOME", "PATH"))}
known["dials"] = socket.gethostbyname(os.environ["MASTER_ADDR"])
known["is"] = socket.gethostbyname(socket.gethostname())
print(json.dumps(known))
"""


def expected(rank: int) -> dict[str, str]:
    """All that a rank is told of itself, but where and at which port rank 0 is."""
    node, local = divmod(rank, 2)
    return {
        "RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": "2", "LOCAL_SIZE": "2",
        "NODE_RANK": str(node), "GROUP_RANK": str(node), "ALLRANKS_RUN": "gang", "ALLRANKS_NODE": str(node),
        "ALLRANKS_NODES": "2", "ALLRANKS_ATTEMPT": "0", "TORCHELASTIC_RUN_ID": "gang",
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "2",
    }  # fmt: skip


@pytest.mark.parametrize("engine", ["local", *ENGINES])
def test_ranks_of_every_engine_are_told_the_same_in_an_image_with_nothing_but_python(
    space: Space, foreign: str, engine: str
) -> None:
    ranks = environments(space, engine, image=foreign)
    assert [same(env) for env in ranks] == [expected(rank) for rank in range(4)]
    for env in ranks:
        left_over = [name for name in env if SOMEBODY_ELSES.fullmatch(name) and name not in IDENTITY]
        assert left_over == []


@pytest.mark.parametrize("user", [{}, USER], ids=["as root", "as another user"])
@pytest.mark.parametrize("shape", [OVER_SSH, MPIRUN], ids=["mpirun starts the agents", "mpirun starts the ranks"])
def test_ranks_below_mpirun_are_told_the_same(space: Space, shape: dict[str, Any], user: dict[str, Any]) -> None:
    ranks = environments(space, "mpijob", image=BASE, env=HARD, **shape, **user)
    assert [same({name: env[name] for name in env if name not in HARD}) for env in ranks] == [
        expected(rank) for rank in range(4)
    ]
    assert [{name: env.get(name) for name in HARD} for env in ranks] == [HARD] * 4


def test_a_user_whom_sshd_lets_in_nowhere_is_told_so(space: Space) -> None:
    user: dict[str, Any] = {**OVER_SSH, "container": {"securityContext": {"runAsUser": 4321}}}
    done = space.allranks("run", "--engine", "mpijob", str(space.spec(run=["true"], image=BASE, **user)))
    assert "sshd lets in only users that /etc/passwd lists, and it has none with the number 4321" in done.stderr
    assert done.returncode == 73


def test_ranks_of_a_runtime_that_the_cluster_has_are_told_the_same(space: Space, foreign: str) -> None:
    """Its pods are changed by runtimePatches or podTemplateOverrides, whichever the installed Trainer has."""
    runtime(space, "torch")
    ranks = environments(space, "trainjob", image=foreign, engines={"trainjob": {"runtime": space.name}})
    assert [same(env) for env in ranks] == [expected(rank) for rank in range(4)]


def test_a_runtime_whose_policy_numbers_no_pods_is_refused_before_anything_is_made(space: Space, foreign: str) -> None:
    runtime(space, "mpi")
    spec = str(space.spec(image=foreign, run=["true"], engines={"trainjob": {"runtime": space.name}}))
    for verb in (["plan", "--check"], ["run"]):
        done = space.allranks(*verb, "--engine", "trainjob", spec)
        assert done.returncode == 69, done.stdout + done.stderr
        assert f"ClusterTrainingRuntime {space.name} has the mpi policy" in done.stderr
    assert kubectl("-n", space.name, "get", "secrets,trainjobs", "-o", "name") == ""


def runtime(space: Space, policy: str) -> None:
    """A ClusterTrainingRuntime of the space's name, which goes with the space."""
    pods = {"restartPolicy": "Never", "containers": [{"name": "node", "image": BASE}]}
    job = {"backoffLimit": 0, "template": {"spec": pods}}
    trained = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    jobs = [{"name": "node", "template": {"metadata": trained, "spec": job}}]
    kubectl("apply", "-f", "-", document={
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "ClusterTrainingRuntime",
        "metadata": {
            "name": space.name, "labels": {OWNER: space.name, "trainer.kubeflow.org/framework": policy},
        },
        "spec": {"mlPolicy": {"numNodes": 1, policy: {}}, "template": {"spec": {"replicatedJobs": jobs}}},
    })  # fmt: skip


def environments(space: Space, engine: str, **fields: Any) -> list[dict[str, str]]:
    """The environment of each rank; all of them find rank 0 at one place, where it is."""
    done = space.allranks("run", "--engine", engine, str(space.spec(run=["python3", "-c", WHO], **fields)))
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(" | ", 1) for line in done.stdout.splitlines())
    ranks: list[dict[str, str]] = [json.loads(lines[f"rank {rank}"]) for rank in range(4)]
    assert len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in ranks}) == 1
    if engine != "local":
        assert {env["dials"] for env in ranks} == {ranks[0]["is"]}
    return ranks


def same(env: dict[str, str]) -> dict[str, str]:
    return {name: env[name] for name in IDENTITY if name in env and name not in ("MASTER_ADDR", "MASTER_PORT")}
