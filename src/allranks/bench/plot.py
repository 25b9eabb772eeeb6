"""Curves as a picture: busbw and time over message size. Needs matplotlib, which the extra ``bench`` brings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from allranks.bench.result import Curve
from allranks.bench.table import bytes_


def png(curves: Sequence[Curve], path: Path, title: str) -> None:
    """Write the picture. Raises ImportError where matplotlib is not installed, OSError."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    bandwidth, time = figure.subplots(1, 2)
    for curve in curves:
        for name in curve.collectives:
            rows = curve.of(name)
            sizes = [row.size for row in rows]
            label = f"{name} ({curve.label})" if curve.label else name
            bandwidth.plot(sizes, [row.busbw for row in rows], marker="o", markersize=3, label=label)
            time.plot(sizes, [row.seconds * 1e6 for row in rows], marker="o", markersize=3, label=label)
    sizes = sorted({row.size for curve in curves for row in curve.rows})
    for axes, what in ((bandwidth, "busbw, GB/s"), (time, "time, us")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes[::3], [bytes_(size) for size in sizes[::3]], rotation=30)
        axes.set_ylabel(what)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8)
    time.set_yscale("log")
    figure.suptitle(title)
    figure.savefig(path, dpi=120, format="png")
