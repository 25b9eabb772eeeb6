"""Bandwidth is what nccl-tests means by it."""

from __future__ import annotations

import pytest

from allranks.bench.collectives import COLLECTIVES, algbw, busbw, ladder


@pytest.mark.parametrize(
    ("name", "factor"),
    [("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875), ("all_to_all", 0.875), ("broadcast", 1),
     ("sendrecv", 1)],
)  # fmt: skip
def test_busbw_of_eight_ranks_is_algbw_times_the_factor_of_nccl_tests(name: str, factor: float) -> None:
    assert algbw(10**9, 0.5) == 2.0
    assert busbw(name, 10**9, 8, 0.5) == pytest.approx(2.0 * factor)


def test_a_message_in_parts_is_cut_to_sixteen_bytes_a_rank() -> None:
    assert COLLECTIVES["all_gather"].count(1000, 3) == 3 * (320 // 4)
    assert COLLECTIVES["all_reduce"].count(1000, 3) == 250


def test_sizes_double_up_to_the_largest() -> None:
    assert ladder(32, 200) == [32, 64, 128]
    assert ladder(64, 32) == []
