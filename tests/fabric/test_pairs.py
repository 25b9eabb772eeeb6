"""Who is measured against whom, and whom the figures name."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.fabric.pairs import Group, Rounds, Speeds, bisect, circle, judge, keep, pairwise, words


def play(rounds: Rounds, slow: set[int], broken: set[int], links: set[Group] = frozenset()) -> tuple[Speeds, int]:  # type: ignore[assignment]
    """Run a plan on a gang in which everybody else reaches 10; what was reached, and in how many rounds."""
    speeds: Speeds = {}
    count, groups = 0, next(rounds)
    while True:
        count += 1
        found: Speeds = {}
        for group in groups:
            bad = slow.intersection(group) or group in links
            found[group] = None if broken.intersection(group) else 1.0 if bad else 10.0
        keep(speeds, found)
        try:
            groups = rounds.send(found)
        except StopIteration:
            return speeds, count


@given(st.integers(2, 40))
def test_the_circle_has_every_pair_once_and_no_node_twice_in_a_round(nodes: int) -> None:
    rounds = circle(nodes)
    assert len(rounds) == (nodes - 1 if nodes % 2 == 0 else nodes)
    assert sorted(pair for one in rounds for pair in one) == sorted(combinations(range(nodes), 2))
    assert all(len({node for pair in one for node in pair}) == 2 * len(one) for one in rounds)


@pytest.mark.parametrize("plan", [pairwise, bisect])
@given(data=st.data(), nodes=st.integers(3, 24))
def test_the_one_slow_or_broken_node_is_named_and_nobody_else(plan: object, data: st.DataObject, nodes: int) -> None:
    bad = data.draw(st.integers(0, nodes - 1))
    is_broken = data.draw(st.booleans())
    assert callable(plan)
    speeds, _ = play(plan(nodes), set() if is_broken else {bad}, {bad} if is_broken else set())
    found = judge(speeds)
    assert (found.broken if is_broken else found.slow) == (bad,)
    assert (found.slow if is_broken else found.broken, found.links, found.unsure) == ((), (), ())


def test_a_gang_in_which_all_are_alike_is_fine() -> None:
    speeds, rounds = play(pairwise(8), set(), set())
    assert (judge(speeds).is_fine, rounds) == (True, 7)


def test_bisect_takes_far_fewer_rounds() -> None:
    _, rounds = play(bisect(64), {17}, set())
    assert rounds <= 12


def test_a_slow_way_between_two_good_nodes_is_told_as_that() -> None:
    speeds, _ = play(pairwise(4), set(), set(), {(1, 2)})
    found = judge(speeds)
    assert (found.slow, found.links) == ((), ((1, 2),))
    assert "between nodes 1 (b) and 2 (c) is slow" in words(found, "abcd", speeds, "GB/s")[0]


def test_a_pair_that_was_slow_for_a_moment_is_measured_again() -> None:
    rounds = pairwise(4)
    groups, count = next(rounds), 0
    try:
        while True:
            count += 1
            groups = rounds.send(dict.fromkeys(groups, 1.0 if count == 1 else 10.0))
    except StopIteration:
        assert count == 4


def test_of_two_nodes_nobody_is_named() -> None:
    assert judge({(0, 1): None}).unsure == ((0, 1),)
