"""One self-contained page about a bench: the verdict, the curves, the rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from allranks import __version__
from allranks.bench.result import Curve, Row
from allranks.bench.table import bytes_, micro
from allranks.cli.page import GENERATOR
from allranks.cli.page.html import Html, el

WIDTH, HEIGHT = 100.0, 100.0
COLOURS = 8
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
COLUMNS = ("size", "count", "time, us", "algbw, GB/s", "busbw, GB/s", "#wrong", "p50, us", "p99, us", "")


def page(title: str, curves: Sequence[Curve], said: Sequence[str], now: datetime) -> str:
    """The page as text; it loads nothing and runs nothing."""
    head = el(
        "head",
        el("meta", charset="utf-8"),
        Html(f'{GENERATOR}{__version__}">'),
        el("meta", http_equiv="Content-Security-Policy", content=POLICY),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", title),
        el("style", Html((Path(__file__).parent / "look.css").read_text(encoding="utf-8"))),
    )
    body = el(
        "body",
        el("header", el("h1", title), *(el("p", _on(curve), class_="quiet") for curve in curves)),
        _section("Verdict", el("ul", *(el("li", line) for line in said))),
        _section("Bus bandwidth, GB/s", _chart(curves, lambda row: row.busbw, lambda value: f"{value:.3g}")),
        _section("Time, us (logarithmic)", _chart(curves, _exponent, lambda value: micro(10**value / 1e6))),
        *(_section(_name(curve, name), _table(curve.of(name))) for curve in curves for name in curve.collectives),
        el("footer", el("p", f"Written by allranks {__version__} at {now:%Y-%m-%d %H:%M:%S %Z}."), class_="quiet"),
    )
    return f'<!DOCTYPE html>\n<html lang="en">\n{head}\n{body}\n</html>\n'


def _exponent(row: Row) -> float:
    return max(0.0, math.log10(max(row.seconds * 1e6, 1.0)))


def _section(title: str, content: Html) -> Html:
    return el("section", el("h2", title), content)


def _name(curve: Curve, collective: str) -> str:
    return f"{collective} ({curve.label})" if curve.label else collective


def _on(curve: Curve) -> str:
    facts = curve.facts
    software = ", ".join(f"{name} {facts[name]}" for name in ("torch", "nccl") if facts.get(name))
    size = f"{curve.ranks} ranks on {curve.nodes} nodes" + (
        f", each on {facts['device']}" if facts.get("device") else ""
    )
    return ": ".join(
        filter(None, (curve.label, "; ".join(filter(None, (size, str(facts.get("backend", "")), software)))))
    )


def _chart(curves: Sequence[Curve], of: Callable[[Row], float], unit: Callable[[float], str]) -> Html:
    """Lines over the logarithm of the size."""
    lines = [(_name(curve, name), curve.of(name)) for curve in curves for name in curve.collectives]
    sizes = sorted({row.size for _, rows in lines for row in rows})
    if not sizes:
        return el("p", "nothing was measured", class_="quiet")
    top = max(of(row) for _, rows in lines for row in rows) or 1.0
    first, last = math.log2(sizes[0]), math.log2(max(sizes[-1], sizes[0] + 1))

    def across(size: int) -> float:
        return WIDTH * (math.log2(size) - first) / (last - first)

    def path(rows: Sequence[Row]) -> str:
        return " ".join(f"{across(row.size):.2f},{HEIGHT - HEIGHT * of(row) / top:.2f}" for row in rows)

    grid = [el("line", x1="0", x2="100", y1=str(y), y2=str(y), class_="tick") for y in (0, 25, 50, 75, 100)]
    drawn = [
        el("polyline", points=path(rows), class_=f"line c{number % COLOURS}") for number, (_, rows) in enumerate(lines)
    ]
    marks = sizes[:: max(1, len(sizes) // 6)]
    labels = el("div", *(el("span", bytes_(size), style=f"left:{across(size):.2f}%") for size in marks), class_="axis")
    levels = el("div", *(el("span", unit(top * share)) for share in (1, 0.5, 0)), class_="levels")
    legend = el(
        "p",
        *(el("span", el("i", class_=f"key c{number % COLOURS}"), name) for number, (name, _) in enumerate(lines)),
        class_="legend",
    )
    picture = el("svg", *grid, *drawn, viewBox="0 0 100 100", preserveAspectRatio="none", aria_hidden="true")
    return el("div", levels, picture, legend, el("span"), labels, class_="chart")


def _table(rows: Sequence[Row]) -> Html:
    head = el("tr", *(el("th", title) for title in COLUMNS))
    return el("div", el("table", head, *map(_row, rows)), class_="scroll")


def _row(row: Row) -> Html:
    cells = (
        bytes_(row.size), str(row.count), micro(row.seconds), f"{row.algbw:.2f}", f"{row.busbw:.2f}",
        "N/A" if row.wrong is None else str(row.wrong), micro(row.p50), micro(row.p99),
        "CUDA graph" if row.graph else "",
    )  # fmt: skip
    return el("tr", *(el("td", cell) for cell in cells), class_="culprit" if row.wrong else None)
