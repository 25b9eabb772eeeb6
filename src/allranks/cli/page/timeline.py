"""The attempts of a run over time: one bar each, with where it broke."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allranks.cli.page.axis import Axis, clock, moment
from allranks.cli.page.html import Html, el, join
from allranks.node.cause import Cause
from allranks.node.status import AttemptStatus, Status

SHOWN = 12
"""Newest attempts that are not folded."""


def timeline(status: Status, axis: Axis) -> Html:
    """One row an attempt, oldest first; of many the older ones are folded."""
    causes = {cause.attempt: cause for cause in status.causes}
    rows = [_row(one, causes, status, axis) for one in status.attempts]
    if not rows:
        return el("p", "No attempt was started.", class_="quiet")
    older, newer = rows[:-SHOWN], rows[-SHOWN:]
    folded = el("details", el("summary", f"{len(older)} earlier attempts"), _list(older)) if older else None
    scale = el("div", el("span"), axis.labels(), el("span"), class_="attempt")
    return join(folded, _list(newer), scale, _legend(causes))


def _list(rows: Sequence[Html]) -> Html:
    return el("ol", *rows, class_="attempts")


def _row(one: AttemptStatus, causes: Mapping[int, Cause], status: Status, axis: Axis) -> Html:
    start, end = moment(one.started) or axis.start, moment(one.ended) or axis.end
    cause = causes.get(one.attempt)
    running, broke = moment(one.running), moment(cause.at) if cause else None
    broke = min(max(broke, start), end) if broke is not None else None
    said = _said(cause, bool(one.ended), status.is_over)
    parts = [axis.grid(), _bar(axis, start, running if running is not None else broke or end, "starting")]
    if running is not None:
        parts.append(
            _bar(axis, running, broke if broke is not None else end, "running" if cause else f"running {said}")
        )
    if broke is not None:
        parts += [_bar(axis, broke, end, "ending")]
        parts += [el("circle", cx=f"{axis.percent(broke):g}%", cy="9", r="5", class_="mark")]
    description = f"attempt {one.attempt}: {said}, from {clock(start - axis.start)} to {clock(end - axis.start)}"
    return el(
        "li",
        el("span", f"attempt {one.attempt}", class_="name"),
        el("svg", *parts, class_="bar", role="img", aria_label=description),
        el("span", f"{said} · {_took(end - start)}", class_="said"),
        class_="attempt",
    )


def _said(cause: Cause | None, ended: bool, over: bool) -> str:
    if cause is not None:
        return cause.kind if cause.rank is None else f"{cause.kind}, rank {cause.rank}"
    if ended:
        return "succeeded"
    return "unknown" if over else "running"


def _took(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else clock(seconds)


def _bar(axis: Axis, start: float, end: float, kind: str) -> Html:
    left, right = axis.percent(start), axis.percent(end)
    return el("rect", x=f"{left:g}%", width=f"{max(right - left, 0.15):g}%", y="3", height="12", class_=kind)


def _legend(causes: Mapping[int, Cause]) -> Html:
    keys = ["starting", "running"] + (["broke", "ending"] if causes else [])
    return el(
        "p", *(el("span", el("i", class_=f"key {key}"), key) for key in keys), class_="legend", aria_hidden="true"
    )
