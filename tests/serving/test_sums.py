"""Sums by the connections of the control plane: real sockets, a thread for each rank."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@contextmanager
def plans_of(world: int) -> Iterator[list[Any]]:
    from allranks.serving.peers import Peers, Plans

    pairs = {rank: socket.socketpair() for rank in range(1, world)}
    first = Plans(Peers({rank: pairs[rank][0] for rank in reversed(pairs)}, {}), 0)  # as they happened to connect
    yield [first, *(Plans(Peers({0: pairs[rank][1]}, {}), rank) for rank in range(1, world))]
    for pair in pairs.values():
        for end in pair:
            end.close()


@pytest.mark.parametrize("size", [1, 1000, 2**20])
def test_all_ranks_get_the_same_bits_in_the_order_of_ranks_and_then_the_next_plan(size: int) -> None:
    import torch

    tensors = [torch.randn(2, size, generator=torch.Generator().manual_seed(rank)) for rank in range(3)]
    wanted = tensors[0] + tensors[1] + tensors[2]

    def follow(plans: Any, tensor: torch.Tensor) -> tuple[int, int]:
        plans.add_up(tensor)
        found: tuple[int, int] = plans.state(7, 0)
        return found

    with plans_of(3) as plans, ThreadPoolExecutor(3) as pool:
        told = list(pool.map(follow, plans, tensors, timeout=60))
    assert told == [(7, 0)] * 3
    assert all(torch.equal(tensor, wanted) for tensor in tensors)


def test_a_sum_with_a_rank_that_is_gone_says_so() -> None:
    import torch

    from allranks.serving.peers import Gone

    with plans_of(2) as (first, second):
        second._peers[0].close()
        with pytest.raises(Gone, match="Connection closed"):
            first.add_up(torch.ones(4))


def test_what_is_large_or_no_sum_or_not_of_all_ranks_is_left_to_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    import torch.distributed as dist

    from allranks.serving import sums

    left: list[Any] = []
    monkeypatch.setattr(dist, "all_reduce", dist.all_reduce)  # put back afterwards
    monkeypatch.setattr(sums, "by_gloo", lambda tensor, op, group, async_op: left.append((tensor.numel(), op)))
    with plans_of(2) as (first, second), ThreadPoolExecutor(1) as pool:
        sums.install(first, 2)
        dist.all_reduce(torch.ones(sums.LARGEST // 4 + 1))
        dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX)
        dist.all_reduce(torch.ones(2, 2).t())
        assert [size for size, _ in left] == [sums.LARGEST // 4 + 1, 2, 4]
        other = pool.submit(second.add_up, torch.ones(2))
        mine = torch.ones(2)
        dist.all_reduce(mine)
        other.result(60)
    assert mine.tolist() == [2, 2]
