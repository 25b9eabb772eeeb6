"""Command lines and hostfiles become specs."""

from __future__ import annotations

import shlex

import pytest

from allranks.convert.command import from_command
from allranks.convert.runai import from_runai
from allranks.errors import SpecError
from allranks.spec.load import dump, parse

V1 = (
    "runai submit-dist pytorch --name pi --workers=1 -g 2 -i img:1 -p team -e A=b --large-shm --cpu 8 --memory 32G "
    "--extended-resource rdma/rdma=1 -a k8s.v1.cni.cncf.io/networks=kube-system/roce "
    "--existing-pvc claimname=scratch,path=/scratch --backoff-limit 2 -- torchrun --nproc-per-node=2 train.py"
)
V2 = (
    "runai training pytorch submit pi --workers 1 --gpu-devices-request 2 --image img:1 --project team "
    "--environment-variable A=b --large-shm --cpu-core-request 8 --cpu-memory-request 32G "
    "--extended-resource rdma/rdma=1 --annotation k8s.v1.cni.cncf.io/networks=kube-system/roce "
    "--existing-pvc claimname=scratch,path=/scratch "
    "--backoff-limit 2 -- torchrun --nproc-per-node=2 train.py"
)


@pytest.mark.parametrize("line", [V1, V2])
def test_both_versions_of_runai_give_the_same_spec(line: str) -> None:
    job, lost = from_runai(shlex.split(line))
    assert parse(dump(job)) == job
    assert (job.name, job.nodes, job.ranks, job.launcher, job.run) == ("pi", 2, 2, "torchrun", "python train.py")
    assert (job.image, job.env, job.engines.runai.project, job.failure.restarts) == ("img:1", {"A": "b"}, "team", 2)
    assert (job.resources.gpus, str(job.resources.memory), job.volumes[0].claim) == (2, "32G", "scratch")
    assert [one.what for one in lost] == ["--large-shm"]


def test_with_mpi_workers_are_all_nodes() -> None:
    line = "runai submit-dist mpi --workers 4 --slots-per-worker 2 -i x -- mpirun -np 8 python t.py"
    job, _ = from_runai(shlex.split(line))
    assert (job.nodes, job.ranks, job.launcher) == (4, 2, "mpirun")


@pytest.mark.parametrize("line", ["runai list jobs", "runai submit-dist pytorch -i x", "runai"])
def test_a_runai_line_without_a_gang_is_refused(line: str) -> None:
    with pytest.raises(SpecError, match="the command: "):
        from_runai(shlex.split(line))


@pytest.mark.parametrize(
    ("line", "nodes", "ranks", "launcher"),
    [
        ("torchrun --nnodes 2 --nproc-per-node 4 train.py", 2, 4, "torchrun"),
        ("mpirun -np 8 -N 4 python train.py", 2, 4, "mpirun"),
        ("deepspeed --num_nodes 2 --num_gpus 8 train.py", 2, 8, "deepspeed"),
        ("python train.py", 1, 1, "native"),
    ],
)
def test_a_launch_command_alone_gives_a_gang(line: str, nodes: int, ranks: int, launcher: str) -> None:
    job, _ = from_command(shlex.split(line))
    assert (job.name, job.nodes, job.ranks, job.launcher, job.run) == (
        "train",
        nodes,
        ranks,
        launcher,
        "python train.py",
    )


def test_a_hostfile_gives_the_nodes_and_the_ranks() -> None:
    job, lost = from_command(["deepspeed", "train.py"], [("a", 8), ("b", 8), ("c", 8)])
    assert (job.nodes, job.ranks, job.launcher) == (3, 8, "deepspeed")
    assert "the hosts' names" in [one.what for one in lost]


def test_ranks_that_do_not_divide_are_told() -> None:
    job, lost = from_command(["mpirun", "-np", "5", "x"], [("a", 4), ("b", 4)])
    assert (job.nodes, job.ranks) == (2, 4)
    assert "5 ranks are not the same number on each of 2 nodes" in [one.why for one in lost]


def test_no_command_is_refused() -> None:
    with pytest.raises(SpecError, match="the command: found nothing"):
        from_command([])
