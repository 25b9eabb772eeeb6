"""Who is measured against whom, and whom the figures name. Standard library, Python 3.8; no input or output."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Dict, Generator, List, Mapping, Optional, Sequence, Tuple

Group = Tuple[int, ...]
Speeds = Dict[Group, Optional[float]]
"""What each group reached, in any unit; None where it failed."""

Rounds = Generator[List[Group], Speeds, None]
"""Gives groups that are measured at the same time, and is sent what they reached."""

SLOW = 0.7
"""Of the best: below it a pair is called slow. Neighbours on a switch differ by some percent, a broken link by half."""


AGAIN = 2
FEW = 4
"""Up to so many nodes halves do not leave a good pair beside the bad one."""


def circle(nodes: int, most: int = 1 << 30) -> List[List[Group]]:
    """Every pair once, in n-1 rounds (n with an odd number) of pairs that share no node: the circle method."""
    seats: List[Optional[int]] = [*range(nodes), *([None] if nodes % 2 else [])]
    rounds: List[List[Group]] = []
    for _ in range(min(len(seats) - 1, most)):
        half = len(seats) // 2
        facing = zip(seats[:half], reversed(seats[half:]))
        rounds.append([(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def pairwise(nodes: int, most: int = 1 << 30, slow: float = SLOW, enough: float = math.inf) -> Rounds:
    """All rounds of the circle, at most ``most``, then the slow pairs again: a moment's noise is not a slow node."""
    speeds: Speeds = {}
    for groups in circle(nodes, most):
        keep(speeds, (yield groups))
    yield from _again(speeds, slow, enough)


def keep(speeds: Speeds, more: Mapping[Group, Optional[float]]) -> None:
    """Take over what was reached; of what was measured before, the better."""
    for group, speed in more.items():
        speeds[group] = max(speed or 0.0, speeds.get(group) or 0.0) or None


def _again(speeds: Speeds, slow: float = SLOW, enough: float = math.inf) -> Rounds:
    """Until a pair is no longer slow, but at most AGAIN times, and once where nothing got through: that takes long."""
    for number in range(AGAIN):
        pairs = {group: speed or 0.0 for group, speed in speeds.items() if len(group) == 2}
        bar = min(slow * max(pairs.values()), enough)
        low = [pair for pair, speed in pairs.items() if (speed < bar or not speed) and (speed or not number)]
        while low:
            apart: List[Group] = []
            for pair in low:
                if not {node for other in apart for node in other}.intersection(pair):
                    apart.append(pair)
            low = [pair for pair in low if pair not in apart]
            keep(speeds, (yield apart))


def bisect(nodes: int) -> Rounds:
    """Halves, quarters and so on, all at once, down to pairs; then who is in a slow pair, with somebody who is not.

    So a gang of n nodes takes log2(n) + 1 rounds and a few for suspects, and shows at which size it becomes slow.
    """
    if nodes <= FEW:
        yield from pairwise(nodes)
        return
    groups: List[Group] = [tuple(range(nodes))]
    speeds: Speeds = {}
    while groups:
        found = yield groups
        keep(speeds, found)
        groups = [half for group in groups for half in _halves(group) if len(half) > 1]
        if all(len(group) <= 2 for group in found):
            break
    yield from _alone(nodes, speeds)
    yield from _again(speeds)


def _halves(group: Group) -> List[Group]:
    if len(group) <= 2:
        return []
    middle = len(group) // 2 if len(group) != 3 else 2
    return [group[:middle], group[middle:]]


def _alone(nodes: int, speeds: Speeds) -> Rounds:
    """Each suspect, and whoever was left without a partner, with a node of a good pair of its own."""
    pairs = {group: speed for group, speed in speeds.items() if len(group) == 2}
    best = max((speed for speed in pairs.values() if speed), default=0.0)
    good = [node for group, speed in pairs.items() if speed and speed >= SLOW * best for node in group]
    suspects = [node for node in range(nodes) if node not in good]
    while suspects and good:
        some, suspects = suspects[: len(good)], suspects[len(good) :]
        keep(speeds, (yield [(min(a, b), max(a, b)) for a, b in zip(some, good)]))


@dataclass(frozen=True)
class Judgement:
    """``broken`` nodes reached nobody, ``slow`` ones nobody well; ``links`` are slow though both their ends are not.

    ``unsure`` pairs are slow and could not be told apart: one of the two nodes is.
    """

    best: float
    broken: Tuple[int, ...] = ()
    slow: Tuple[int, ...] = ()
    links: Tuple[Group, ...] = ()
    unsure: Tuple[Group, ...] = ()

    @property
    def is_fine(self) -> bool:
        return not (self.broken or self.slow or self.links or self.unsure)


def judge(
    speeds: Mapping[Group, Optional[float]], slow: float = SLOW, least: float = 0.0, enough: float = math.inf
) -> Judgement:
    """Name the nodes that were slow with everybody.

    ``least`` is what a pair must reach besides; with ``enough`` it is never slow.
    """
    pairs = {group: speed for group, speed in speeds.items() if len(group) == 2}
    best = max((speed for speed in pairs.values() if speed), default=0.0)
    bar = min(max(slow * best, least), enough)
    nodes = sorted({node for pair in pairs for node in pair})
    reached = {node: [speed for pair, speed in pairs.items() if node in pair] for node in nodes}
    if len(nodes) <= 2:
        bad = tuple(pair for pair, speed in pairs.items() if not speed or speed < bar)
        return Judgement(best, unsure=bad)
    broken = tuple(node for node in nodes if not any(reached[node]))
    low = tuple(node for node in nodes if node not in broken and max(s or 0.0 for s in reached[node]) < bar)
    named = {*broken, *low}
    rest = tuple(pair for pair, speed in pairs.items() if (not speed or speed < bar) and not named.intersection(pair))
    alone = {node for node in nodes if len(reached[node]) < 2}
    unsure = tuple(pair for pair in rest if alone.intersection(pair))
    return Judgement(best, broken, low, tuple(pair for pair in rest if pair not in unsure), unsure)


def words(judgement: Judgement, names: Sequence[str], speeds: Mapping[Group, Optional[float]], unit: str) -> List[str]:
    """A sentence for each that is named; ``names`` by node."""

    def fastest(node: int) -> str:
        return f"{max((speed or 0.0) for pair, speed in speeds.items() if len(pair) == 2 and node in pair):.3g}"

    said = [f"node {node} ({names[node]}) reached no other node" for node in judgement.broken]
    said += [
        f"node {node} ({names[node]}) is slow: at best {fastest(node)} {unit} with any other node, "
        f"where the best pair has {judgement.best:.3g}"
        for node in judgement.slow
    ]
    for what, pairs in (("is slow, though both are fast with others", judgement.links), ("is slow", judgement.unsure)):
        for a, b in pairs:
            speed = speeds[(a, b)]
            how = f"{speed:.3g} {unit}" if speed else "nothing got through"
            said.append(f"the way between nodes {a} ({names[a]}) and {b} ({names[b]}) {what}: {how}")
    return said
