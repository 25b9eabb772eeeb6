"""What a bench shows: nccl-tests' table, settings side by side, the verdict, pictures."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from allranks.bench.result import Curve, Row, message
from allranks.bench.settings import parse
from allranks.bench.table import side_by_side, table
from allranks.bench.verdict import compared, verdict
from allranks.cli.page.curves import page


def curve(label: str = "", busbw: float = 300.0, *, nodes: int = 2, network: float = 400, **row: object) -> Curve:
    """Eight ranks a node; the larger of two messages has that busbw."""
    facts = {
        "ranks": 8 * nodes,
        "nodes": nodes,
        "device": "NVIDIA H100",
        "backend": "nccl",
        "network": [["m", network]] * 8,
    }
    small = Row("all_reduce", 32768, 8192, 20e-6, 1.6, 0.05, 0, 19e-6, 30e-6, graph=True)
    values = {"wrong": 0, "p50": 1e-2, "p99": 1.1e-2, **row}
    large = Row("all_reduce", 1 << 30, 1 << 28, 1e-2, busbw / 1.9, busbw, **values)  # type: ignore[arg-type]
    return Curve(label, facts, (small, large), ended=True)


def test_the_table_is_laid_out_as_nccl_tests_does() -> None:
    lines = list(table(curve()))
    heads = next(line for line in lines if "algbw" in line).split()
    assert heads[1:10] == ["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"]
    assert lines[-4].split()[:9] == ["1073741824", "268435456", "float", "sum", "-1", "10000", "157.89", "300.00", "0"]
    assert "# Out of bounds values : 0 OK" in lines


@pytest.mark.parametrize(
    ("busbw", "words"),
    [(350.0, "tensor parallel"), (60.0, "ZeRO-3 and FSDP"), (20.0, "data parallel, ZeRO-1"), (2.0, "small models"),
     (0.1, "too slow for training")],
)  # fmt: skip
def test_the_verdict_says_what_a_bandwidth_is_good_for(busbw: float, words: str) -> None:
    assert any(words in line for line in verdict(curve(busbw=busbw)))


def test_the_verdict_compares_with_line_rate_and_known_systems() -> None:
    said = "\n".join(verdict(curve(busbw=340.0)))
    assert "85% of the 3200 Gbit/s of a node's 8 ports" in said
    assert "known: 340 GB/s on 2 nodes of 8 H100" in said
    assert "100% of it" in said


def test_far_below_line_rate_says_what_to_look_at() -> None:
    assert any("far from line rate; see: allranks fabric" in line for line in verdict(curve(busbw=40.0)))


def test_wrong_results_come_first() -> None:
    assert next(iter(verdict(curve(wrong=7)))).startswith("WRONG RESULTS: all_reduce of 1 GiB")


def test_a_long_tail_is_told() -> None:
    assert any("unsteady: the slowest of 1 GiB took 5.0 times" in line for line in verdict(curve(p99=5e-2)))


def test_two_settings_stand_side_by_side_with_a_verdict() -> None:
    both = [curve("rdma", 300.0), curve("tcp", 3.0)]
    lines = list(side_by_side(both))
    assert lines[1].split()[:5] == ["#", "size", "rdma", "time", "tcp"]
    assert list(compared(both)) == ["all_reduce: rdma is 100 times as fast as tcp at their best (300 and 3 GB/s)"]


def test_a_setting_that_changes_nothing_is_told_as_that() -> None:
    (said,) = compared([curve("a", 100.0), curve("b", 101.0)])
    assert "the same within 5 %" in said


def test_settings_are_names_or_variables() -> None:
    rdma, other = parse("rdma, NCCL_P2P_DISABLE=1+NCCL_SHM_DISABLE=1")
    assert (rdma.rdma, other.env) == ("required", {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"})


@pytest.mark.parametrize("text", ["rdma", "rdma,rdma", "rdma,fast", "tcp,=1"])
def test_what_cannot_be_compared_is_refused_with_what_can(text: str) -> None:
    with pytest.raises(ValueError, match="found"):
        parse(text)


def test_only_lines_of_ours_are_heard() -> None:
    assert message('{"allranks.bench": "end"}') == {"allranks.bench": "end"}
    assert message("NCCL INFO allranks.bench") is None
    assert message('{"allranks.bench": ') is None


def test_the_page_is_complete_in_itself_and_runs_nothing() -> None:
    text = page("bench <b>", [curve("rdma"), curve("tcp", 3.0)], ["fast & good"], datetime.now(timezone.utc))
    assert "bench &lt;b&gt;" in text
    assert "fast &amp; good" in text
    assert text.count("<polyline") == 4
    assert "<script" not in text
    assert "http:" not in text.replace("http-equiv", "")
    assert "https:" not in text


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="NOT TESTED, --png: the extra bench is not installed")
    from allranks.bench.plot import png

    png([curve("rdma"), curve("tcp", 3.0)], tmp_path / "out.png", "title")
    assert (tmp_path / "out.png").read_bytes()[:4] == b"\x89PNG"
