"""Each engine's node finds its place in what that engine gives it, or says in one line why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from allranks import engines
from allranks.engines.engine import Pretend
from allranks.engines.mpijob import identity as mpijob
from allranks.errors import UsageError
from allranks.node.entry import entry
from allranks.node.place import NoPlace, Place, Surroundings
from allranks.node.pod import Pod
from allranks.spec.job import Job

ENGINES = ["jobset", "mpijob", "pytorchjob", "runai", "trainjob"]


def pods(engine: str, nodes: int = 3, **fields: Any) -> list[Pod]:
    job = Job.model_validate({"name": "digits", "run": ("true",), "nodes": nodes, "ranks_per_node": 2, **fields})
    pretend: Pretend = engines.pretend(engine)
    return list(pretend.pods(job, [f"127.1.0.{node + 1}" for node in range(nodes)]))


def place_of(engine: str, pod: Pod, root: Path, nodes: int = 3, **changes: Any) -> Place:
    """Where that pod believes it is; ``changes`` are variables that are otherwise, or gone (None)."""
    pod.lay_out(str(root))
    env: Mapping[str, str | None] = {**pod.environment(str(root)), **changes}
    found = {name: value for name, value in env.items() if value is not None}
    identity = import_module(f"allranks.engines.{engine}.identity")
    place: Place = identity.place(Surroundings(found, nodes, str(root)))
    return place


def test_the_engines_that_can_be_pretended_are_found_by_their_folders() -> None:
    assert engines.pretended() == ENGINES


def test_an_unknown_one_is_an_error_that_lists_them() -> None:
    allowed = ", ".join(ENGINES)
    with pytest.raises(
        UsageError, match=f"^--as mpi: no such engine to pretend; allowed: {allowed}; did you mean mpijob"
    ):
        engines.pretend("mpi")


@pytest.mark.parametrize(
    ("engine", "fields", "coordinator"),
    [
        ("jobset", {}, "digits-w-0-0.digits.default.svc.cluster.local"),
        ("mpijob", {}, "digits-launcher.digits.default.svc.cluster.local"),
        ("mpijob", {"engines": {"mpijob": {"start": "mpirun"}}}, "digits-worker-0.digits"),
        ("pytorchjob", {}, "digits-master-0"),
        ("runai", {}, "digits-master-0"),
        ("trainjob", {}, "digits-node-0-0.digits"),
        ("trainjob", {"launcher": "mpirun"}, "digits-launcher-0-0.digits.default.svc.cluster.local"),
    ],
)
def test_every_pod_finds_its_place_and_a_coordinator_that_the_cluster_knows(
    tmp_path: Path, engine: str, fields: dict[str, Any], coordinator: str
) -> None:
    made = pods(engine, **fields)
    for node, pod in enumerate(made):
        assert place_of(engine, pod, tmp_path / pod.hostname) == Place(node, 3, coordinator)
    assert coordinator in made[0].names


@pytest.mark.parametrize(
    ("engine", "node", "changes", "message"),
    [
        ("jobset", 1, {"JOB_COMPLETION_INDEX": None}, "JOB_COMPLETION_INDEX is not set"),
        ("jobset", 1, {"JOB_COMPLETION_INDEX": "x"}, "JOB_COMPLETION_INDEX is 'x', and must be a whole number"),
        ("jobset", 1, {"JOB_COMPLETION_INDEX": "2"}, "JOB_COMPLETION_INDEX is 2, but the host name is digits-w-0-1"),
        ("mpijob", 1, {"K_MPI_JOB_ROLE": "launcher"},
         "K_MPI_JOB_ROLE is 'launcher', but the host name is digits-worker-0"),
        ("pytorchjob", 1, {"PET_NODE_RANK": None}, "PET_NODE_RANK is not set"),
        ("pytorchjob", 1, {"RANK": "2"}, "PET_NODE_RANK is '1', but RANK is '2'"),
        ("pytorchjob", 1, {"MASTER_ADDR": "x"}, "MASTER_ADDR is 'x', but PET_MASTER_ADDR is 'digits-master-0'"),
        ("pytorchjob", 1, {"PET_NNODES": "2:4"},
         "PET_NNODES is 2:4: the job has an elasticPolicy, a gang has one size"),
        ("pytorchjob", 1, {"PET_NNODES": "4"}, "PET_NNODES says 4 nodes, but the gang has 3"),
        ("runai", 1, {"MASTER_ADDR": None}, "MASTER_ADDR is not set"),
        ("trainjob", 1, {"PET_NODE_RANK": "3", "JOB_COMPLETION_INDEX": None},
         "PET_NODE_RANK makes this node 3, but the gang has nodes 0 to 2"),
        ("trainjob", 1, {"PET_NODE_RANK": "0"}, "PET_NODE_RANK is '0', but JOB_COMPLETION_INDEX is '1'"),
        ("trainjob", 1, {"PET_MASTER_ADDR": ""}, "PET_MASTER_ADDR is not set"),
    ],
)  # fmt: skip
def test_what_is_missing_or_contradictory_is_one_error(
    tmp_path: Path, engine: str, node: int, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(NoPlace) as caught:
        place_of(engine, pods(engine)[node], tmp_path, **changes)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "mpirun started 2 agents on this node; it must start one (-N 1)"),
        ({"OMPI_COMM_WORLD_SIZE": "6"}, "OMPI_COMM_WORLD_SIZE says 6 nodes, but the gang has 3"),
        ({"PMIX_RANK": "0"}, "OMPI_COMM_WORLD_RANK is '1', but PMIX_RANK is '0'"),
        ({"ALLRANKS_COORDINATOR": None}, "ALLRANKS_COORDINATOR is not set"),
    ],
)
def test_an_agent_that_mpirun_started_needs_to_be_the_only_one_of_its_node(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    pod = pods("mpijob", engines={"mpijob": {"start": "mpirun"}})[1]
    with pytest.raises(NoPlace) as caught:
        place_of("mpijob", pod, tmp_path, **changes)
    assert str(caught.value) == message


def test_an_agent_that_mpich_or_intel_mpi_started_finds_its_place_too() -> None:
    env = {"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALNRANKS": "1", "ALLRANKS_COORDINATOR": "g-worker-0.g"}
    assert mpijob.place(Surroundings(env, 3)) == Place(2, 3, "g-worker-0.g")


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("/etc/hosts", "127.1.0.1 digits-launcher\n",
         "/etc/hosts has no full name of digits-launcher: the pod needs a hostname and a subdomain"),
        ("/etc/mpi/hostfile", "\n", "/etc/mpi/hostfile is missing or empty"),
        ("/etc/mpi/hostfile", "digits-worker-0.digits.default.svc slots=2\n",
         "/etc/mpi/hostfile does not list digits-launcher: the MPIJob needs runLauncherAsWorker: true"),
        ("/etc/mpi/hostfile", "digits-worker-0 slots=2\ndigits-launcher slots=2\n",
         "/etc/mpi/hostfile says 2 nodes, but the gang has 3"),
    ],
)  # fmt: skip
def test_an_mpi_launcher_reads_its_files_or_says_what_is_wrong_with_them(
    tmp_path: Path, path: str, text: str, message: str
) -> None:
    launcher = pods("mpijob")[0]
    with pytest.raises(NoPlace) as caught:
        place_of("mpijob", Pod(launcher.hostname, (), launcher.env, {**launcher.files, path: text}), tmp_path)
    assert str(caught.value) == message


def test_a_host_name_of_another_kind_of_pod_is_an_error(tmp_path: Path) -> None:
    stranger = pods("jobset")[0]
    with pytest.raises(NoPlace, match=r"^the host name digits-w-0-0 is neither JOB-launcher nor JOB-worker-N$"):
        place_of("mpijob", stranger, tmp_path)
    with pytest.raises(NoPlace, match=r"^PET_NODE_RANK is not set, and the host name digits-w-0-0 is neither "):
        place_of("trainjob", stranger, tmp_path)


@pytest.mark.parametrize("engine", ["local", *ENGINES])
def test_an_agent_that_cannot_tell_its_place_gives_up_with_one_line(tmp_path: Path, engine: str) -> None:
    plan = {
        "run": "g", "engine": "local", "version": "1", "nodes": 2, "ranks_per_node": 2, "launcher": "native",
        "argv": ["true"], "workdir": "/", "coordinator": "127.1.0.1", "state": str(tmp_path), "identity": engine,
    }  # fmt: skip
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    argv = [sys.executable, entry(), "agent", str(tmp_path / "plan.json"), "nobody"]
    env = {"PATH": os.environ["PATH"], "ALLRANKS_ROOT": str(tmp_path)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (42, "")
    assert len(done.stdout.splitlines()) == 1
    assert "cannot tell which node this is: " in done.stdout
    assert done.stdout.rstrip().endswith(f"(read as engine {engine})")
