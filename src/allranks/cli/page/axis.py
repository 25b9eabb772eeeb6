"""The time axis that everything over time on the page shares."""

from __future__ import annotations

from dataclasses import dataclass

from allranks.cli.page.html import Html, el, join
from allranks.node import cause

_STEPS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400)
_MOST_TICKS = 5


@dataclass(frozen=True)
class Axis:
    """From ``start`` to ``end``, in seconds since 1970."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return max(self.end - self.start, 1.0)

    def percent(self, moment: float) -> float:
        """Where a moment is, 0 to 100."""
        return min(100.0, max(0.0, round(100 * (moment - self.start) / self.seconds, 3)))

    def ticks(self) -> list[float]:
        """A few round numbers of seconds since the start."""
        days = 86400 * max(1, round(self.seconds / 86400 / (_MOST_TICKS - 1)))
        step = next((step for step in _STEPS if self.seconds / step <= _MOST_TICKS), days)
        return [float(at) for at in range(0, int(self.seconds) + 1, step)]

    def labels(self) -> Html:
        """The ticks as text, for under a chart."""
        marks = [el("span", clock(at), style=f"left:{self.percent(self.start + at):g}%") for at in self.ticks()]
        return el("div", *marks, class_="axis", aria_hidden="true")

    def grid(self) -> Html:
        """The ticks as lines, for an SVG whose width is 100%."""
        lines = []
        for at in self.ticks():
            x = f"{self.percent(self.start + at):g}%"
            lines.append(el("line", x1=x, x2=x, y1="0", y2="100%", class_="tick"))
        return join(*lines)


def clock(seconds: float) -> str:
    """``0:12``, ``1:02:03``, ``2 d 3:00:00``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def moment(utc: str) -> float | None:
    """Seconds since 1970 of what a record says; None where it says nothing."""
    try:
        return cause.moment(utc)
    except ValueError:
        return None
