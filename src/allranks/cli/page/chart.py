"""Something of each rank over time: a line each, or of many ranks the range that they are in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from allranks.cli.page.axis import Axis
from allranks.cli.page.html import Html, el

COLUMNS = 240
MOST_LINES = 8
COLOURS = 8

Points = Sequence[tuple[float, float]]
"""Moments in seconds since 1970, with a value each."""

Columns = Mapping[int, float]


def chart(
    series: Mapping[int, Sequence[Points]], axis: Axis, breaks: Sequence[float], unit: Callable[[float], str]
) -> Html:
    """The lines of up to MOST_LINES ranks, one an attempt; else lowest to highest, and the median.

    ``breaks`` are vertical lines.
    """
    columns = {rank: [_columns(points, axis) for points in parts] for rank, parts in sorted(series.items())}
    values = [value for parts in columns.values() for part in parts for value in part.values()]
    top = _round_up(max(values, default=1.0))
    if len(columns) <= MOST_LINES:
        drawn = [_line(part, top, f"c{i % COLOURS}") for i, parts in enumerate(columns.values()) for part in parts]
        keys = [(f"c{number % COLOURS}", f"rank {rank}") for number, rank in enumerate(columns)]
    else:
        drawn, keys = _range(columns, top)
    lines = [el("line", x1=x, x2=x, y1="0", y2="100", class_="break") for x in map(axis.percent, breaks)]
    picture = el(
        "svg", *_levels(), *lines, *drawn, viewBox="0 0 100 100", preserveAspectRatio="none", aria_hidden="true"
    )
    levels = el("div", *(el("span", unit(top * share)) for share in (1, 0.5, 0)), class_="levels", aria_hidden="true")
    legend = el("p", *(el("span", el("i", class_=f"key {key}"), words) for key, words in keys), class_="legend")
    return el("div", levels, picture, legend, el("span"), axis.labels(), class_="chart")


def _columns(points: Points, axis: Axis) -> dict[int, float]:
    """The last value in each of COLUMNS pieces of the axis."""
    return {round(axis.percent(at) / 100 * COLUMNS): value for at, value in points}


def _round_up(value: float) -> float:
    """The next number of the form 1, 1.5, 2, 3, 5, 7 times a power of ten, in powers of 1024 for what is large."""
    if value <= 0:
        return 1.0
    unit = 1.0
    while value / unit >= 1024:
        unit *= 1024
    power = 10.0 ** (len(str(int(value / unit))) - 1)
    return next(step * power * unit for step in (1, 1.5, 2, 3, 5, 7, 10, 11) if step * power * unit >= value)


def _levels() -> list[Html]:
    return [el("line", x1="0", x2="100", y1=str(y), y2=str(y), class_="tick") for y in (0, 50, 100)]


def _line(columns: Columns, top: float, name: str) -> Html:
    return el("polyline", points=_path(sorted(columns.items()), top), class_=f"line {name}")


def _path(points: Sequence[tuple[int, float]], top: float) -> Html:
    return Html(" ".join(f"{100 * x / COLUMNS:.5g},{100 - 100 * value / top:.4g}" for x, value in points))


def _range(columns: Mapping[int, Sequence[Columns]], top: float) -> tuple[list[Html], list[tuple[str, str]]]:
    by_column: dict[int, list[float]] = {}
    for parts in columns.values():
        for column, value in {x: value for part in parts for x, value in part.items()}.items():
            by_column.setdefault(column, []).append(value)
    # A column in which only few ranks were sampled would make the range jump.
    whole = {x: sorted(values) for x, values in sorted(by_column.items()) if 2 * len(values) >= len(columns)}
    low, high = [(x, v[0]) for x, v in whole.items()], [(x, v[-1]) for x, v in whole.items()]
    middle = [(x, v[len(v) // 2]) for x, v in whole.items()]
    area = el("polygon", points=_path([*low, *reversed(high)], top), class_="range")
    median = el("polyline", points=_path(middle, top), class_="line c0")
    return [area, median], [("c0", f"median of {len(columns)} ranks"), ("range", "lowest to highest")]
