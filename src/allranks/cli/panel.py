"""How a run stands, as lines that fit a terminal: pure, told the size, the last lines and the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from allranks.cli import words
from allranks.cli.plain import fit, one_line
from allranks.node.status import NodeStatus, RankStatus, Status

MOST_RANKS = 16
"""A gang with more ranks is shown by nodes."""


def panel(status: Status, last: Mapping[int, str], width: int, height: int) -> list[str]:
    """At most ``height`` lines of at most ``width`` columns: how it stands, then a line a rank, a node, or for all."""
    lines = [headline(status)]
    straggling = words.straggling(status)
    if straggling:
        lines.append(straggling)
    room = height - len(lines)
    ranks = [rank for node in status.nodes for rank in node.ranks]
    if len(ranks) <= min(MOST_RANKS, room):
        lines += [_rank(rank, node, status, last) for node in status.nodes for rank in node.ranks]
    elif len(status.nodes) <= room and len(status.nodes) < len(ranks):
        lines += [_node(node) for node in status.nodes]
    elif room > 0:
        lines.append(_together(ranks))
    return [fit(line, width) for line in lines[: max(height, 1)]]


def headline(status: Status) -> str:
    """Name, phase, attempt, restarts, who is there, time."""
    facts = [
        status.name,
        status.phase,
        f"attempt {status.attempt}",
        f"restarts {words.restarts(status)}",
        words.awaited(status),
        words.took(status),
    ]
    return " · ".join(facts)


def _rank(rank: RankStatus, node: NodeStatus, status: Status, last: Mapping[int, str]) -> str:
    number = f"rank {rank.rank:<{len(str(status.world_size - 1))}}  node {node.node:<{len(str(len(status.nodes) - 1))}}"
    straggles = status.straggler is not None and status.straggler.rank == rank.rank
    mark = "!" if straggles or rank.exit else " "
    said = one_line(last.get(rank.rank, ""), 300)
    return f"{mark} {number}  {words.state(rank):<8}{_vitals(rank)}  {said}".rstrip()


def _vitals(rank: RankStatus) -> str:
    rate = f"{words.rate(rank.rate)}/s" if rank.rate is not None else ""
    return f"{words.size(rank.rss) if rank.rss else '':>9}{rate:>8}"


def _node(node: NodeStatus) -> str:
    return f"  node {node.node}: {_together(node.ranks)}" + (f"  {node.reason}" if node.reason else "")


def _together(ranks: Sequence[RankStatus]) -> str:
    """``64 ranks: 62 running, 2 waiting · 1.1 GiB to 1.3 GiB · 11.8 to 12/s``."""
    states = [words.state(rank) for rank in ranks]
    counts = sorted({state: states.count(state) for state in states}.items(), key=lambda one: (-one[1], one[0]))
    parts = [", ".join(f"{number} {state}" for state, number in counts[:4])]
    parts += _between([rank.rss for rank in ranks if rank.rss], words.size, "")
    parts += _between([rank.rate for rank in ranks if rank.rate is not None], words.rate, "/s")
    return f"{words.counted(len(ranks), 'rank')}: " + " · ".join(parts)


def _between(values: Sequence[float], shown: Callable[[float], str], unit: str) -> Iterator[str]:
    if values:
        low, high = shown(min(values)), shown(max(values))
        yield (low if low == high else f"{low} to {high}") + unit
