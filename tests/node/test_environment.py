"""Every rank learns who it is from the same names, and on one machine each node has its own GPUs."""

from __future__ import annotations

import pytest

from allranks.node.environment import IDENTITY, base_environment, rank_environment, visible_devices
from tests.node.gangs import make_gang


def test_a_rank_counts_processes_and_never_nodes() -> None:
    env = rank_environment(make_gang(restarts=3), rank=3, attempt=1, address="10.0.0.1", port=1234)
    assert {name: value for name, value in env.items() if name in IDENTITY} == {
        "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "LOCAL_SIZE": "2",
        "NODE_RANK": "1", "GROUP_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234",
        "ALLRANKS_RUN": "g", "ALLRANKS_NODE": "1", "ALLRANKS_NODES": "2", "ALLRANKS_ATTEMPT": "1",
        "TORCHELASTIC_RUN_ID": "g", "TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_MAX_RESTARTS": "3",
    }  # fmt: skip


def test_once_has_one_rank_a_node() -> None:
    env = rank_environment(make_gang(launcher="once"), rank=1, attempt=0, address="a", port=1)
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]) == ("1", "2", "0", "1")


def test_an_outer_gangs_identity_is_not_inherited() -> None:
    env = base_environment(make_gang(), {"RANK": "9", "MASTER_ADDR": "x", "HOME": "/root", "OMP_NUM_THREADS": "5"})
    assert "RANK" not in env
    assert "MASTER_ADDR" not in env
    assert (env["HOME"], env["OMP_NUM_THREADS"]) == ("/root", "5")


def test_one_thread_a_rank_only_where_ranks_share_a_node() -> None:
    assert base_environment(make_gang(), {})["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in base_environment(make_gang(ranks_per_node=1), {})
    assert base_environment(make_gang(env={"OMP_NUM_THREADS": "7"}), {})["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize(("rank", "devices"), [(0, "4,5"), (1, "4,5"), (2, "6,7"), (3, "6,7")])
def test_local_nodes_do_not_share_gpus(rank: int, devices: str) -> None:
    gang = make_gang(env={"CUDA_VISIBLE_DEVICES": "4,5,6,7"})
    assert rank_environment(gang, rank, 0, "a", 1)["CUDA_VISIBLE_DEVICES"] == devices


@pytest.mark.parametrize("changes", [{"nodes": 1}, {"engine": "jobset"}, {"env": {"CUDA_VISIBLE_DEVICES": "0,1,2"}}])
def test_gpus_are_left_alone_where_nodes_are_hosts_or_gpus_too_few(changes: dict[str, object]) -> None:
    gang = make_gang(**{"env": {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, **changes})
    assert "CUDA_VISIBLE_DEVICES" not in rank_environment(gang, 0, 0, "a", 1)


def test_an_empty_list_hides_all_gpus() -> None:
    assert visible_devices("") == []


def test_restarts_are_counted_from_the_commands_first_attempt() -> None:
    env = rank_environment(make_gang(first_attempt=3, restarts=2), rank=0, attempt=4, address="a", port=1)
    assert (env["TORCHELASTIC_RESTART_COUNT"], env["TORCHELASTIC_MAX_RESTARTS"]) == ("1", "2")
    assert env["ALLRANKS_ATTEMPT"] == "4"
