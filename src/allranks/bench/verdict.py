"""What the figures are good for, in words: against the NIC's line rate, known systems, and what training asks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from allranks.bench.result import Curve, Row
from allranks.bench.table import bytes_, micro

LARGE = 16 << 20
"""Bytes from which on bandwidth, not latency, is what is measured."""

USES = (
    (300.0, "tensor parallel across these ranks"),
    (40.0, "ZeRO-3 and FSDP, which gather the weights for every layer (they want 400 Gbit/s, 50 GB/s, between nodes)"),
    (10.0, "data parallel, ZeRO-1 and ZeRO-2 of models of some billion parameters"),
    (1.0, "data parallel of small models, or with many gradient accumulation steps"),
)
"""GB/s of busbw, and the most demanding use that it is enough for."""

KNOWN = (
    (r"A100", 1, 8, 235.0, "8 A100 with NVSwitch"),
    (r"H100", 1, 8, 460.0, "8 H100 with NVLink SHARP (some 370 without)"),
    (r"H200", 1, 8, 480.0, "8 H200 with NVLink SHARP (some 370 without)"),
    (r"B200", 1, 8, 846.0, "8 B200"),
    (r"H100", 2, 8, 340.0, "2 nodes of 8 H100 with 8 x 400 Gbit/s RoCE"),
    (r"H200", 2, 8, 440.0, "2 nodes of 8 H200 with 8 x 400 Gbit/s InfiniBand"),
)
"""Device, nodes, ranks a node, all_reduce's busbw at its best, and where that is known from (public reports)."""


def verdict(curve: Curve) -> Iterator[str]:
    """Some sentences about one curve."""
    name = "all_reduce" if curve.of("all_reduce") else next(iter(curve.collectives), "")
    best = curve.peak(name)
    if best is None:
        yield "nothing was measured"
        return
    yield from _wrong(curve)
    where = "between nodes" if curve.nodes > 1 else "within one node"
    peak = f"{name} peaks at {best.busbw:.4g} GB/s (busbw, {where}) with {bytes_(best.size)}"
    yield f"{peak}; {_latency(curve.of(name)[0])}"
    if curve.ranks < 2:
        yield "one rank alone has nobody to talk to: this tells of the machinery, not of a network"
        return
    if best.size < LARGE:
        yield f"the largest message was {bytes_(best.size)}: bandwidth shows from {bytes_(LARGE)} on; try --max-size 1G"
    yield from _line_rate(curve, best)
    yield from _like_others(curve, best)
    yield _good_for(best)
    yield from _unsteady(curve.of(name))


def _wrong(curve: Curve) -> Iterator[str]:
    bad = [row for row in curve.rows if row.wrong]
    if bad:
        sizes = ", ".join(f"{row.collective} of {bytes_(row.size)}" for row in bad[:4])
        yield f"WRONG RESULTS: {sizes}: do not train on this; look for ECC errors (nvidia-smi -q -d ECC) and ACS"


def _latency(row: Row) -> str:
    return f"{bytes_(row.size)} takes {micro(row.p50 or row.seconds)} us"


def _line_rate(curve: Curve, best: Row) -> Iterator[str]:
    """With one ring a NIC, busbw is what all of a node's NICs carry together."""
    ports = [rate for _, rate in curve.facts.get("network", [])]
    if curve.nodes < 2 or not ports or curve.facts.get("engine") == "local":
        return
    gigabits, share = sum(ports), best.busbw * 8 / sum(ports)
    text = f"that is {share:.0%} of the {gigabits:g} Gbit/s of a node's {len(ports)} ports"
    if share > 1.05:
        yield f"{text}: more than they carry, so part of it went another way (NVLink SHARP, or nodes are fewer)"
    elif share < 0.5:
        yield f"{text}: far from line rate; see: allranks fabric, allranks doctor, and --compare rdma,tcp"
    else:
        yield text


def _like_others(curve: Curve, best: Row) -> Iterator[str]:
    device, each = str(curve.facts.get("device", "")), curve.ranks // max(curve.nodes, 1)
    for pattern, nodes, ranks, known, what in KNOWN:
        if best.collective == "all_reduce" and re.search(pattern, device) and (nodes, ranks) == (curve.nodes, each):
            yield f"known: {known:.0f} GB/s on {what}; this is {best.busbw / known:.0%} of it"


def _good_for(best: Row) -> str:
    for least, use in USES:
        if best.busbw >= least:
            return f"enough for {use}"
    return "too slow for training on more than one rank, but for trying things out"


def _unsteady(rows: Sequence[Row]) -> Iterator[str]:
    """Tails: in training the slowest iteration is what everybody waits for."""
    odd = [row for row in rows if row.size >= LARGE and row.p50 and row.p99 and row.p99 > 2 * row.p50]
    if odd:
        row = max(odd, key=lambda row: (row.p99 or 0) / (row.p50 or 1))
        yield f"unsteady: the slowest of {bytes_(row.size)} took {(row.p99 or 0) / (row.p50 or 1):.1f} times the median"


def compared(curves: Sequence[Curve]) -> Iterator[str]:
    """The first setting against the others, in words."""
    first = curves[0]
    for other in curves[1:]:
        for name in first.collectives:
            a, b = first.peak(name), other.peak(name)
            if a is None or b is None or not b.busbw:
                yield f"{name}: {other.label} gave nothing to compare with"
                continue
            at_best = f"at their best ({a.busbw:.4g} and {b.busbw:.4g} GB/s)"
            yield f"{name}: {_than(first.label, a.busbw, other.label, b.busbw)} {at_best}"


def _than(first: str, a: float, other: str, b: float) -> str:
    ratio = max(a, b) / min(a, b)
    if ratio < 1.05:
        return f"{first} and {other} are the same within 5 %: the setting changes nothing here, or was not honoured"
    winner, loser = (first, other) if a > b else (other, first)
    return f"{winner} is {ratio:.3g} times as fast as {loser}"
