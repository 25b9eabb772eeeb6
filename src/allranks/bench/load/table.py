"""Rows as text: a load a line, latencies in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.bench.load.result import Row, Spread

HEAD = (
    f"# {'load':>12} {'answers':>8} {'errors':>7} {'req/s':>8} {'tokens/s':>9} {'TTFT ms':>16} {'ITL ms':>16} "
    f"{'TPOT ms':>8} {'e2e ms':>16}",
    f"# {'':>12} {'':>8} {'':>7} {'':>8} {'(new)':>9} {'p50':>7} {'p99':>8} {'p50':>7} {'p99':>8} {'p50':>8} "
    f"{'p50':>7} {'p99':>8}",
)
LATE = 0.1
"""Of an open loop's mean gap: a client that asks later than that measures itself."""


def line(row: Row) -> str:
    """One row below HEAD."""
    failed = row.asked - row.answers
    return (
        f"  {row.load.label:>12} {row.answers:>8} {failed:>7} {row.requests_a_second:>8.2f} "
        f"{row.tokens_a_second:>9.1f} {_pair(row.ttft)} {_pair(row.itl)} {_ms(row.tpot.at(0.5)):>8} {_pair(row.e2e)}"
    )


def notes(row: Row) -> Iterator[str]:
    """What has to be said of a row besides."""
    for kind, count in row.errors.items():
        yield f"# {row.load.label}: {count} x {kind}: {row.messages[kind]}"
    if row.decoding is not None:
        yield f"# {row.load.label}: {row.decoding:.1f} tokens/s while all were decoding"
    if row.answers and not row.counted:
        yield f"# {row.load.label}: the server counts no tokens in its streams; each piece of text is taken for one"
    late = row.late.at(0.99)
    if late and late > max(LATE / row.load.rate, 0.01):
        yield f"# {row.load.label}: 1 % of the requests left {late * 1e3:.0f} ms late: this client is overloaded"


def _pair(spread: Spread) -> str:
    return f"{_ms(spread.at(0.5)):>7} {_ms(spread.at(0.99)):>8}"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    value = seconds * 1e3
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
