"""nccl-tests' output of several layouts: 2019 (error, no root), 2021 (N/A), 2022 (#wrong, root), 2025 (version line).

The rows are as real builds print them; numbers are from public threads, shortened.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.bench.fromlog import NotALog, read
from tests.gangs.gang import cli

OF_2019 = """\
# Using devices
#   Rank  0 Pid  71327 on node-a device  0 [0x1a] Tesla V100-SXM3-32GB
#   Rank  1 Pid  71327 on node-a device  1 [0x1b] Tesla V100-SXM3-32GB
#
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2   float     sum    158.3    0.00    0.00  1e-07    158.4    0.00    0.00  0e+00
    33554432       8388608   float     sum   1464.2   22.92   22.92  2e+01   1458.1   23.01   23.01    N/A
# Avg bus bandwidth    : 11.5
"""
OF_2021_WITHOUT_A_CHECK = """\
$ mpirun -n 16 ./build/alltoall_perf -b 8 -e 512M -f 2 -g 1 -c 0
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
    67108864       1048576   float            2659.1   25.24   23.66    N/A   3014.6   22.26   20.87    N/A
"""
OF_2022 = """\
# nThread 1 nGpus 8 minBytes 8388608 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#  Rank  0 Group  0 Pid 272562 on   node-a device  0 [0x1d] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid 843876 on   node-b device  0 [0x1d] NVIDIA A100-SXM4-80GB
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
node-a:272562:272562 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:10.0.0.5<0>
   536870912     134217728     float     sum      -1    10052   53.41   53.41      0   9676.9   55.48   55.48      0
  1073741824     268435456     float     sum      -1    20079   53.48   53.48      3    19265   55.74   55.74      0
# Out of bounds values : 1 FAILED
# Avg bus bandwidth    : 54.5
"""
OF_2025 = """\
# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: broadcast_perf
#  Rank  0 Group  0 Pid    770 on         vm device  0 [0000:00:06] NVIDIA H200
#  Rank  1 Group  0 Pid    771 on         vm device  1 [0000:00:07] NVIDIA H200
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
     1048576        262144     float    none       0    28.15   37.25   37.25       0    27.52   38.10   38.10       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 37.675
"""
PER_ITERATION = """\
# Collective test starting: all_reduce_perf
#       size         count      type   redop    root     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv% timestamp
     1048576        262144     float     sum      -1    28.15   37.25   65.19       0    27.10    29.10    29.00     1.20    27.52   38.10   66.67       0    27.00    28.90    28.80     1.10  2026-11-28 10:00:00
"""  # noqa: E501 - as wide as it is printed


def test_of_2019_the_error_is_a_difference_and_rounding_is_none() -> None:
    curve = read(OF_2019)
    assert [(row.collective, row.size, row.wrong) for row in curve.rows] == [
        ("all_reduce", 8, 0), ("all_reduce", 33554432, 1),
    ]  # fmt: skip
    assert (curve.ranks, curve.nodes, curve.facts["device"]) == (2, 1, "Tesla V100-SXM3-32GB")
    assert curve.rows[1].seconds == pytest.approx(1464.2e-6)


def test_an_empty_redop_and_no_check_are_read_and_the_ranks_follow_from_the_factor() -> None:
    (row,) = read(OF_2021_WITHOUT_A_CHECK).rows
    assert (row.collective, row.algbw, row.busbw, row.wrong) == ("all_to_all", 25.24, 23.66, None)
    assert read(OF_2021_WITHOUT_A_CHECK).ranks == 16


def test_of_2022_nccls_lines_in_between_are_passed_over_and_wrong_is_a_count() -> None:
    curve = read(OF_2022)
    assert [(row.size, row.wrong) for row in curve.rows] == [(536870912, 0), (1073741824, 3)]
    assert (curve.ranks, curve.nodes, curve.ended) == (2, 2, True)


def test_of_2025_the_collective_and_the_versions_are_in_the_head() -> None:
    curve = read(OF_2025)
    assert (curve.rows[0].collective, curve.facts["nccl"], curve.facts["nccl_tests"]) == (
        "broadcast", "2.28.9", "2.17.6",
    )  # fmt: skip


def test_more_columns_are_found_by_their_heads() -> None:
    (row,) = read(PER_ITERATION).rows
    assert row.seconds == pytest.approx(28.15e-6)
    assert (row.algbw, row.busbw, row.wrong) == (37.25, 65.19, 0)


@pytest.mark.parametrize("text", ["", "hello\n 1 2 3\n", "# size count type\n"])
def test_what_is_no_such_log_is_refused(text: str) -> None:
    with pytest.raises(NotALog, match="it holds no row"):
        read(text)


def test_the_command_line_shows_a_log_with_a_verdict(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(OF_2022)
    done = cli("bench", "--from-log", str(tmp_path / "log"))
    assert "all_reduce peaks at 53.48 GB/s" in done.stdout
    assert "WRONG RESULTS: all_reduce of 1 GiB" in done.stdout
    assert done.returncode == 1


def test_a_gate_is_an_exit_code(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(OF_2025)
    assert cli("bench", "--from-log", str(tmp_path / "log"), "--min-busbw", "30").returncode == 0
    done = cli("bench", "--from-log", str(tmp_path / "log"), "--min-busbw", "50")
    assert (done.returncode, "37.25 GB/s is less than --min-busbw 50" in done.stdout) == (1, True)
