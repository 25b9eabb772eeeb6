"""How a run stands in lines that fit, however many ranks there are; and what ranks print made harmless."""

from __future__ import annotations

import pytest

from allranks.cli.news import News
from allranks.cli.panel import panel
from allranks.cli.plain import columns, fit, one_line, plain
from allranks.node.status import NodeStatus, RankStatus, Status, Straggler


def running(nodes: int, ranks: int) -> Status:
    """A gang that runs, each rank with a little more memory than the one before."""
    made = [
        NodeStatus(n, f"g-{n}", "", "running", "", [_rank(n * ranks + r, r) for r in range(ranks)])
        for n in range(nodes)
    ]
    return Status("g", "local", "running", world_size=nodes * ranks, nodes=made)


def _rank(rank: int, local: int) -> RankStatus:
    return RankStatus(rank, local, 100 + rank, "running", None, 2**30 + rank * 2**26, 12.5)


def test_a_small_gang_has_a_line_a_rank_with_its_last_line() -> None:
    head, *ranks = panel(running(2, 2), {2: "step 7\tloss 0.1\x1b[31m"}, 100, 20)
    assert head.startswith("g · running · attempt 0 · restarts 0 of 0 · 2 of 2 nodes there")
    assert ranks[0] == "  rank 0  node 0  running     1 GiB  12.5/s"
    assert ranks[2] == "  rank 2  node 1  running  1.12 GiB  12.5/s  step 7 loss 0.1"


def test_a_larger_gang_has_a_line_a_node_and_a_very_large_one_a_line_for_all() -> None:
    assert panel(running(4, 8), {}, 100, 20)[1:3] == [
        "  node 0: 8 ranks: 8 running · 1 GiB to 1.44 GiB · 12.5/s",
        "  node 1: 8 ranks: 8 running · 1.5 GiB to 1.94 GiB · 12.5/s",
    ]
    assert panel(running(1000, 8), {}, 100, 20)[1:] == ["8000 ranks: 8000 running · 1 GiB to 501 GiB · 12.5/s"]


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 2), (4, 8), (1000, 8)])
@pytest.mark.parametrize(("width", "height"), [(20, 1), (1, 1), (79, 8), (30, 3)])
def test_nothing_is_wider_or_higher_than_the_terminal(nodes: int, ranks: int, width: int, height: int) -> None:
    status = running(nodes, ranks)
    status.straggler = Straggler("rank 1 on node 0 had not entered all_reduce #7", "2026-01-02T03:04:05.678Z", 1, 0)
    lines = panel(status, {0: "語" * 200}, width, height)
    assert len(lines) <= height
    assert max(map(columns, lines)) <= max(width, 3)


def test_a_straggler_is_told_once_and_marked() -> None:
    status = running(2, 2)
    status.straggler = Straggler("rank 1 on node 0 had not entered all_reduce #7", "2026-01-02T03:04:05.678Z", 1, 0)
    lines = panel(status, {}, 100, 20)
    assert lines[1].endswith("s: rank 1 on node 0 had not entered all_reduce #7")
    assert lines[3].startswith("! rank 1")
    news = News()
    assert [line[:12] for line in news.of(status, 0)] == ["attempt 0: 4", "waiting for "]
    assert news.of(status, 1) == []
    status.straggler = Straggler("again", "2026-01-02T03:05:05.678Z", 1, 0)
    assert news.of(status, 2)[0].endswith("s: again")


def test_text_of_ranks_loses_colours_and_shows_what_cannot_be_seen() -> None:
    assert plain("\x1b[31mred\x1b[0m\x1b]0;title\x07 \x00\u202e\ud800") == "red \\x00\\u202e\\ud800"
    assert one_line("10%\r 50%\r 100%\r\n") == " 100%"
    assert plain("x" * 10**8, 10) == "xxxxxxx..."
    assert fit("語語語", 5) == "語語"
