"""The ranks of the last attempt: how each does or did, and what it printed last."""

from __future__ import annotations

from collections.abc import Sequence

from allranks.cli import words
from allranks.cli.page.causes import output
from allranks.cli.page.html import Budget, Html, el, join
from allranks.cli.plain import one_line
from allranks.engines.engine import Kept, Sample
from allranks.node.status import RankStatus, Status

SHOWN = 32
"""Ranks that are not folded."""


def ranks(status: Status, kept: Kept, budget: Budget) -> Html:
    """One row a rank, the culprit's first, each unfolding to its last lines."""
    culprits = {cause.rank for cause in status.causes if cause.attempt == status.attempt}
    if status.straggler:
        culprits.add(status.straggler.rank)
    all_ranks = [(rank, node.name) for node in status.nodes for rank in node.ranks]
    ordered = sorted(all_ranks, key=lambda one: (one[0].rank not in culprits, one[0].rank))
    rows = [budget.spend(_row(rank, node, kept, status.attempt, rank.rank in culprits)) for rank, node in ordered]
    shown = [row for row in rows if row is not None]
    left_out = len(rows) - len(shown)
    note = f"{words.counted(left_out, 'more rank')} left out, so that this page stays small; see: allranks logs"
    head = ("rank", "node", "state", "memory", "collectives/s", "last line")
    return join(
        el("div", *(el("span", name) for name in head), class_="row head", aria_hidden="true"),
        *shown[:SHOWN],
        _fold(shown[SHOWN:]),
        el("p", note, class_="cut") if left_out else None,
    )


def _fold(rows: Sequence[Html]) -> Html | None:
    return el("details", el("summary", f"{len(rows)} more ranks"), *rows, class_="more") if rows else None


def _mean(history: Sequence[Sample]) -> float | None:
    """Collectives a second over an attempt; None for a rank that makes none."""
    if len(history) < 2 or not history[-1].completed or history[-1].at <= history[0].at:
        return None
    return (history[-1].completed - history[0].completed) / (history[-1].at - history[0].at)


def _row(rank: RankStatus, node: str, kept: Kept, attempt: int, is_culprit: bool) -> Html:
    lines = kept.tails.get(rank.rank, ())
    history = [one for one in kept.history.get(rank.rank, ()) if one.attempt == attempt]
    cells = [
        el("b", f"rank {rank.rank}", class_="name"),
        el("span", node, class_="node"),
        el("span", words.state(rank), class_="state failed" if rank.exit or is_culprit else "state"),
        el("span", words.size(rank.rss or (history[-1].rss if history else None)), class_="size"),
        el("span", words.rate(rank.rate if rank.rate is not None else _mean(history)), class_="rate"),
        el("span", one_line(lines[-1], 160) if lines else "", class_="gist"),
    ]
    body = output(lines) if lines else el("p", "It has printed nothing.", class_="quiet")
    return el("details", el("summary", *cells, class_="row"), body, class_="rank")
