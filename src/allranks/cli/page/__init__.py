"""One self-contained HTML page of a run: a value made of a status and of what the engine has kept."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import groupby, pairwise
from pathlib import Path

from allranks import __version__
from allranks.cli import words
from allranks.cli.page import causes
from allranks.cli.page.axis import Axis, clock, moment
from allranks.cli.page.chart import Points, chart
from allranks.cli.page.html import Budget, Html, el, join
from allranks.cli.page.ranks import ranks
from allranks.cli.page.timeline import timeline
from allranks.engines.engine import Kept, Sample
from allranks.node.status import Status

GENERATOR = '<meta name="generator" content="allranks '
"""By this a page of ours is known."""

LAST_CAUSE, RANKS, EARLIER = 1_800_000, 1_800_000, 900_000
"""Bytes that these parts may take; with all others the page stays below 5 MB."""

MOST_COMMANDS = 50

SCRIPT = """
addEventListener("beforeprint", () => document.querySelectorAll(".evidence details").forEach(d => { d.open = true; }));
"""
"""On paper nothing can be unfolded."""


def page(status: Status, kept: Kept, now: datetime | None = None) -> str:
    """The page, as it is at ``now``."""
    now = now or datetime.now(timezone.utc)
    axis = _axis(status, kept, now)
    body = join(
        _head(status, kept, now),
        _section("Attempts", timeline(status, axis)),
        _last_cause(status, kept),
        _section("Ranks", ranks(status, kept, Budget(RANKS))) if status.nodes else None,
        _charts(status, kept, axis),
        _earlier_causes(status, kept),
        _commands(status),
        _notes(status),
        el("footer", _made(now, kept), class_="quiet"),
    )
    return f'<!DOCTYPE html>\n<html lang="en">\n{_meta(status)}\n{el("body", body)}\n</html>\n'


def _meta(status: Status) -> Html:
    """What ranks print is escaped; should that ever fail, the policy has no script but ours run, and nothing loaded."""
    allowed = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'"
    return el(
        "head",
        el("meta", charset="utf-8"),
        Html(f'{GENERATOR}{__version__}">'),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", f"{status.name}: {status.phase}"),
        el("style", Html(Path(__file__).with_name("look.css").read_text(encoding="utf-8"))),
        el("script", Html(SCRIPT)),
    )


def _section(title: str, *content: Html | None) -> Html:
    return el("section", el("h2", title), *content)


def _axis(status: Status, kept: Kept, now: datetime) -> Axis:
    """From the start to the end; of a run whose end nobody saw, to the last that is known of it."""
    known = [at for one in status.attempts for at in (moment(one.started), moment(one.ended)) if at is not None]
    known += [history[-1].at for history in kept.history.values()]
    known += [at for cause in status.causes if (at := moment(cause.at)) is not None]
    start = moment(status.started) or min(known, default=now.timestamp())
    end = moment(status.ended) or (max(known, default=start) if status.is_over else now.timestamp())
    return Axis(start, max(start, end))


def _head(status: Status, kept: Kept, now: datetime) -> Html:
    straggler = words.straggling(status, now)
    return el(
        "header",
        el("div", el("h1", status.name), el("span", status.phase, class_=f"badge {status.phase}"), class_="title"),
        el("p", status.reason) if status.reason else None,
        el("p", straggler, class_="alert") if straggler else None,
        el("p", el("code", shlex.join(kept.argv)), class_="command") if kept.argv else None,
        causes.facts_of(_facts(status, now)),
    )


def _facts(status: Status, now: datetime) -> list[tuple[str, str]]:
    size = f"{words.counted(len(status.nodes), 'node')}, {words.counted(status.world_size, 'rank')}"
    passed = words.seconds(status, now)
    facts = [
        ("engine", status.engine),
        ("gang", size if status.world_size else ""),
        ("restarts used", words.restarts(status)),
        ("transport", status.transport),
        ("started", words.local_time(status.started) if status.started else ""),
        (
            "ended" if status.is_over else "as it was",
            words.local_time(status.ended) if status.is_over else f"{now.astimezone():%Y-%m-%d %H:%M:%S}",
        ),
        (
            "took" if status.is_over else "for",
            "" if passed is None or (status.is_over and not status.ended) else clock(passed),
        ),
        ("exit code", "" if status.exit_code is None else str(status.exit_code)),
    ]
    return [(name, value) for name, value in facts if value not in ("", "-")]


def _last_cause(status: Status, kept: Kept) -> Html | None:
    if not status.causes:
        return None
    cause = status.causes[-1]
    title = "Why it ended" if status.is_over and status.phase != "succeeded" else "What broke last"
    shown = causes.last(cause, kept.evidence.get(cause.attempt), Budget(LAST_CAUSE))
    return _section(title, el("div", shown, class_="cause"))


def _earlier_causes(status: Status, kept: Kept) -> Html | None:
    older = status.causes[:-1]
    if not older:
        return None
    return _section("What broke before", causes.earlier(older, kept.evidence, Budget(EARLIER)))


# What the ranks were like over time


def _charts(status: Status, kept: Kept, axis: Axis) -> Html | None:
    if not kept.history:
        return None
    breaks = [at for cause in status.causes if (at := moment(cause.at)) is not None]
    by_attempt = {rank: _by_attempt(history) for rank, history in kept.history.items()}
    memory = {r: [[(one.at, float(one.rss)) for one in part] for part in parts] for r, parts in by_attempt.items()}
    moving = {r: parts for r, parts in by_attempt.items() if any(one.completed for part in parts for one in part)}
    rates = {rank: [_rates(part) for part in parts] for rank, parts in moving.items()}
    return join(
        _section(
            "Memory", el("p", "Resident memory of each rank.", class_="quiet"), chart(memory, axis, breaks, words.size)
        ),
        _section(
            "Progress",
            el("p", "Collectives that each rank completed a second.", class_="quiet"),
            chart(rates, axis, breaks, words.rate),
        )
        if rates
        else None,
    )


def _by_attempt(history: Sequence[Sample]) -> list[list[Sample]]:
    return [list(part) for _, part in groupby(history, key=lambda one: one.attempt)]


def _rates(history: Sequence[Sample]) -> Points:
    """Between one sample and the next."""
    return [(b.at, max(0, b.completed - a.completed) / (b.at - a.at)) for a, b in pairwise(history) if b.at > a.at]


# The rest


def _commands(status: Status) -> Html | None:
    if not status.stays or not status.commands:
        return None
    shown = reversed(status.commands[-MOST_COMMANDS:])
    return _section("Commands", el("ul", *(el("li", words.outcome(command)) for command in shown)))


def _notes(status: Status) -> Html | None:
    if not status.notes:
        return None
    return _section("Notes", el("ul", *(el("li", note) for note in status.notes[:MOST_COMMANDS])))


def _made(now: datetime, kept: Kept) -> Html:
    made = el("p", f"Written by allranks {__version__} at {now.astimezone():%Y-%m-%d %H:%M:%S %Z}.")
    return join(made, el("p", "Everything of the run: ", el("code", kept.folder)) if kept.folder else None)
