"""A load's picture: throughput and latency over the load, and how latencies spread. Needs matplotlib (extra bench)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from allranks.bench.load.result import Row


def png(rows: Sequence[Row], path: Path, title: str) -> None:
    """Write the picture. Raises ImportError where matplotlib is not installed, OSError."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.5), layout="constrained")
    throughput, latency, spread = figure.subplots(1, 3)
    loads = [row.load.clients or row.load.rate for row in rows]
    throughput.plot(loads, [row.tokens_a_second for row in rows], marker="o", label="new tokens/s")
    throughput.set_ylabel("tokens/s")
    for name, part, style in (("p50", 0.5, "-"), ("p99", 0.99, "--")):
        for what in ("ttft", "tpot", "e2e"):
            values = [_ms(getattr(row, what).at(part)) for row in rows]
            latency.plot(loads, values, style, marker="o", label=f"{what} {name}")
    latency.set_yscale("log")
    latency.set_ylabel("ms")
    for axes in (throughput, latency):
        axes.set_xlabel("clients" if rows[0].load.clients else "arrivals a second")
    for row in rows:
        values = [value * 1e3 for value in row.e2e.values]
        parts = [(number + 1) / len(values) for number in range(len(values))]
        spread.step(values, parts, where="post", label=row.load.label)
    spread.set_xlabel("end to end, ms")
    spread.set_ylabel("part of the answers")
    for axes in (throughput, latency, spread):
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle(title)
    figure.savefig(path, dpi=120, format="png")


def _ms(seconds: float | None) -> float:
    return float("nan") if seconds is None else seconds * 1e3
