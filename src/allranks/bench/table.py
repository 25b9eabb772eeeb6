"""Rows as text, laid out as nccl-tests does, and two settings side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from allranks.bench.result import Curve, Row

REDUCES = ("all_reduce", "reduce_scatter")
HEAD = (
    f"# {'size':>12} {'count':>12} {'type':>6} {'redop':>6} {'root':>5} {'time':>9} {'algbw':>8} {'busbw':>8} "
    f"{'#wrong':>7} {'p50':>9} {'p99':>9}",
    f"# {'(B)':>12} {'(elements)':>12} {'':>6} {'':>6} {'':>5} {'(us)':>9} {'(GB/s)':>8} {'(GB/s)':>8} {'':>7}"
    f" {'(us)':>9} {'(us)':>9}",
)


def line(row: Row) -> str:
    """One row below HEAD. A g at its end says that CUDA graphs were timed."""
    redop = "sum" if row.collective in REDUCES else "none"
    root = 0 if row.collective == "broadcast" else -1
    wrong = "N/A" if row.wrong is None else str(row.wrong)
    return (
        f"  {row.size:>12} {row.count:>12} {'float':>6} {redop:>6} {root:>5} {micro(row.seconds):>9} {row.algbw:>8.2f} "
        f"{row.busbw:>8.2f} {wrong:>7} {micro(row.p50):>9} {micro(row.p99):>9}{' g' if row.graph else ''}"
    )


def micro(seconds: float | None) -> str:
    """Microseconds in four digits, as nccl-tests writes them."""
    if seconds is None:
        return "-"
    value = seconds * 1e6
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def table(curve: Curve) -> Iterator[str]:
    """All of one curve."""
    for collective in curve.collectives:
        yield from title(collective, curve)
        for row in curve.of(collective):
            yield line(row)
    yield from foot(curve)


def title(collective: str, curve: Curve) -> Iterator[str]:
    """What stands above a collective's rows."""
    facts = curve.facts
    software = " ".join(f"{name} {facts[name]}" for name in ("torch", "nccl") if facts.get(name))
    label = f" ({curve.label})" if curve.label else ""
    size = f"{curve.ranks} ranks on {curve.nodes} nodes"
    yield f"# {collective}{label}: {size}, {facts.get('backend', '')} {software}".rstrip()
    if facts.get("device"):
        yield f"# each on {facts['device']}"
    if facts.get("bounded"):
        yield f"# sizes end at {bytes_(facts['sizes'][-1])}: there is no memory for more"
    yield from HEAD


def foot(curve: Curve) -> Iterator[str]:
    """Correctness, and nccl-tests' average: the plain mean over all sizes, small ones too."""
    wrong = [row for row in curve.rows if row.wrong]
    if any(row.wrong is not None for row in curve.rows):
        yield f"# Out of bounds values : {len(wrong)} {'FAILED' if wrong else 'OK'}"
    if curve.rows:
        yield f"# Avg bus bandwidth    : {sum(row.busbw for row in curve.rows) / len(curve.rows):.4g}"
    if any(row.graph for row in curve.rows):
        yield "# g: CUDA graphs of 50 operations each"


def side_by_side(curves: Sequence[Curve]) -> Iterator[str]:
    """Busbw and time of each setting by size, and what the first is worth against the last."""
    width = max(12, *(len(curve.label) for curve in curves))
    for collective in dict.fromkeys(name for curve in curves for name in curve.collectives):
        yield f"# {collective}: busbw in GB/s, time in us"
        yield f"# {'size':>10} " + " ".join(f"{curve.label:>{width}} {'time':>9}" for curve in curves) + "   ratio"
        found = [{row.size: row for row in curve.of(collective)} for curve in curves]
        for size in sorted({size for rows in found for size in rows}):
            yield f"  {bytes_(size):>10} {_cells([rows.get(size) for rows in found], width)}"


def _cells(rows: Sequence[Row | None], width: int) -> str:
    cells = " ".join(
        f"{row.busbw:>{width}.2f} {micro(row.seconds):>9}" if row else f"{'-':>{width}} {'-':>9}" for row in rows
    )
    first, last = rows[0], rows[-1]
    ratio = f"{last.seconds / first.seconds:>7.2f}x" if first and last and first.seconds else ""
    return f"{cells} {ratio}"


def bytes_(size: float) -> str:
    """``32 KiB``, ``1 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.4g} {unit}"
