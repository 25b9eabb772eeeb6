"""A bench's gang from its start to its end, its figures shown as they come."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from allranks.bench.gang import can_log, messages
from allranks.bench.ranks.tell import MARK
from allranks.bench.result import Curve
from allranks.cli import say, signals, words
from allranks.cli.follow import EXIT_UNTOLD, LAST_WAIT
from allranks.cli.news import News
from allranks.fabric.pairs import keep

if TYPE_CHECKING:
    from allranks.cli.bench_show import Show
    from allranks.engines.engine import Engine, Plan


def sweep(engine: Engine, plan: Plan, label: str, show: Show) -> Curve:
    """Measure one curve; what there is of it when it was interrupted or broke."""
    curve = Curve(label)
    for message in _heard(engine, plan, show):
        curve = curve.heard(message)
        if message[MARK] == "begin":
            curve = Curve(label, {**curve.facts, "engine": engine.name}, curve.rows)
        elif message[MARK] == "row":
            show.row(curve)
    return curve


def rounds(engine: Engine, plan: Plan, show: Show) -> int:
    """Measure groups of nodes against each other; returns the exit code."""
    names: list[str] = []
    speeds: dict[tuple[int, ...], float | None] = {}
    whys: dict[tuple[int, ...], str] = {}
    ended = False
    for message in _heard(engine, plan, show):
        if message[MARK] == "begin":
            names = list(message["names"])
        elif message[MARK] == "group":
            group = tuple(message["nodes"])
            keep(speeds, {group: message["busbw"]})
            whys[group] = message["why"]
            show.group(message, names)
        ended = ended or message[MARK] == "end"
    return show.judged(speeds, whys, names, complete=ended)


def _heard(engine: Engine, plan: Plan, show: Show) -> Iterator[Mapping[str, Any]]:
    """Start the gang, yield what rank 0 tells, and see to its end."""
    with signals.collected() as received:
        with say.notes(plan.notes):
            run = engine.submit(plan, detach=False)
        news = News()
        for message in messages(can_log(engine), run):
            if message is not None:
                yield message
                continue
            say.lines(news.of(run.status(), time.monotonic()))
            if received and not show.interrupted:
                show.interrupted = received[0]
                say.line(f"ending {run.name} ...")
                signals.cancel(run, received[0])
        run.wait(LAST_WAIT)
        ended = run.status()
    if ended.phase != "succeeded" and not show.interrupted:
        show.failed = ended.exit_code or EXIT_UNTOLD
        say.lines(words.ending(ended))
