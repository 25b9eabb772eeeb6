"""Who is named for a hang, and in which words: the rule over tables of answers."""

from __future__ import annotations

from typing import Any

import pytest

from allranks.node.watch import evidence
from allranks.node.watch.hang import Account, Finding, Group, judge, table_text

WORLD = (0, 1, 2, 3)


def group(entered: int, waits: bool, operation: str = "all_reduce", size: int = 1000, members: Any = WORLD) -> Group:
    return Group(members, entered, entered - 1 if waits else entered, waits, operation, (f"[{size}]",))


def waits(rank: int, number: int = 21, operation: str = "all_reduce", size: int = 1000, name: str = "0") -> Account:
    """A rank that sits in a collective of the default group."""
    return Account(rank, rank // 2, groups={name: group(number, True, operation, size)}, where="train.py:9 step")


def computes(rank: int, number: int = 20, where: str = "train.py:40 misbehave", **more: Any) -> Account:
    """A rank between collectives."""
    return Account(rank, rank // 2, groups={"0": group(number, False)}, where=where, **more)


def silent(rank: int, seconds: float = 3.2, state: str = "R", channel: str = "0") -> Account:
    return Account(rank, rank // 2, state=state, channel=channel, silent=seconds, where="train.py:40 misbehave")


def ended(rank: int) -> Account:
    return Account(rank, rank // 2, state="", ended=True)


def unknown(rank: int) -> Account:
    return Account(rank, rank // 2, state="", watched=False)


def leaves(rank: int, kind: str = "", words: str = "") -> Account:
    return Account(rank, rank // 2, state="R", watched=False, left=(kind, words))


def two_groups(rank: int, first: Group | None, second: Group | None) -> Account:
    named = {"1": first, "2": second}
    return Account(rank, rank // 2, groups={name: g for name, g in named.items() if g is not None})


OTHERS_WAIT = [waits(0), waits(2), waits(3)]
LATE = "rank 1 on node 0 had not entered all_reduce #21 that 3 ranks wait in; it was in train.py:40 misbehave"

TABLES: dict[str, tuple[list[Account], int | None, str]] = {
    "a rank that had not entered what the others wait in": ([*OTHERS_WAIT, computes(1)], 1, LATE),
    "a rank that holds the GIL": (
        [*OTHERS_WAIT, silent(1)],
        1,
        "rank 1 on node 0 has not answered for 3.2 s: it holds the GIL (state R); 3 ranks wait in all_reduce #21; "
        "it was in train.py:40 misbehave",
    ),
    "a rank that an exception ends, and whose process stays": (
        [*OTHERS_WAIT, leaves(1, "exception", "ValueError: 7")],
        1,
        "rank 1 on node 0: ValueError: 7; its process has not ended since; 3 ranks wait in all_reduce #21",
    ),
    "a rank whose python ends without an exception": (
        [*OTHERS_WAIT, leaves(1)],
        1,
        "rank 1 on node 0 is leaving (its python is ending, or is another program now) and has not ended; "
        "3 ranks wait in all_reduce #21",
    ),
    "a stopped rank": (
        [*OTHERS_WAIT, silent(1, state="T", channel="do_signal_stop")],
        1,
        "rank 1 on node 0 is stopped (state T, do_signal_stop) and has not answered for 3.2 s; "
        "3 ranks wait in all_reduce #21; it was in train.py:40 misbehave",
    ),
    "a silent rank before any collective": (
        [silent(2), computes(0, 0), computes(1, 0), computes(3, 0)],
        2,
        "rank 2 on node 1 has not answered for 3.2 s: it holds the GIL (state R); it was in train.py:40 misbehave",
    ),
    "the silent rank and not a late one": ([waits(0), silent(1), computes(2, 3), waits(3)], 1, "not answered"),
    "the stopped rank and not one that is silent for longer": (
        [waits(0), silent(1, 9.0), silent(2, 3.0, "T"), waits(3)],
        2,
        "rank 2 on node 1 is stopped (state T) and has not answered for 3.0 s (nor does rank 1)",
    ),
    "the latest of several late ranks": ([waits(0), computes(1, 20), computes(2, 19), waits(3)], 2, "rank 2 on node 1"),
    "the lowest of two equally late ranks": (
        [waits(0), computes(1), computes(2), waits(3)],
        1,
        "rank 1 on node 0 had not entered all_reduce #21 (nor had rank 2) that 2 ranks wait in",
    ),
    "nobody where one waits and all others do not": (
        [waits(0), computes(1), computes(2), computes(3)],
        None,
        "ranks 1, 2, 3 had not entered all_reduce #21 that 1 rank waits in",
    ),
    "a rank that has ended without entering": (
        [*OTHERS_WAIT, ended(1)],
        1,
        "rank 1 on node 0 has ended and never entered all_reduce #21 that 3 ranks wait in",
    ),
    "a rank that never used the group": (
        [*OTHERS_WAIT, Account(1, 0, where="train.py:3 load")],
        1,
        "rank 1 on node 0 had not entered all_reduce #21 that 3 ranks wait in; it was in train.py:3 load",
    ),
    "the rank with the minority's operation": (
        [*OTHERS_WAIT, waits(1, operation="all_gather")],
        1,
        "rank 1 on node 0 is in all_gather as collective #21, in which 3 ranks are in all_reduce of [1000]",
    ),
    "the rank with another size": (
        [*OTHERS_WAIT, waits(1, size=500)],
        1,
        "rank 1 on node 0 is in all_reduce of [500] as collective #21, in which 3 ranks are in all_reduce of [1000]",
    ),
    "nobody of two that are in different operations": (
        [waits(0), waits(1, operation="all_gather")],
        None,
        "ranks are in different operations as collective #21: rank 0 in all_reduce of [1000], rank 1 in all_gather",
    ),
    "nobody where sizes may differ": (
        [waits(rank, operation="all_to_all", size=rank) for rank in WORLD],
        None,
        "4 ranks wait in all_to_all #21 of group 0 that all its ranks have entered and none completes",
    ),
    "nobody where all have entered": (
        [waits(rank) for rank in WORLD],
        None,
        "4 ranks wait in all_reduce #21 of group 0 that all its ranks have entered and none completes",
    ),
    "the only rank of which nothing is known": (  # such as one whose interpreter is about to exit
        [*OTHERS_WAIT, unknown(1)],
        1,
        "rank 1 on node 0 does not say whether it entered all_reduce #21 of group 0 that 3 ranks wait in",
    ),
    "nobody of two of which nothing is known": (
        [waits(0), unknown(1), unknown(2), waits(3)],
        None,
        "2 ranks wait in all_reduce #21 of group 0, and of ranks 1, 2 nothing is known",
    ),
    "the rank at the root of a chain and not one that waits for it": (
        [
            two_groups(0, group(5, True, members=(0, 1)), None),
            two_groups(1, group(4, False, members=(0, 1)), group(7, True, members=(1, 2))),
            two_groups(2, None, group(6, False, members=(1, 2))),
        ],
        2,
        "rank 2 on node 1 had not entered all_reduce #7 that 1 rank waits in",
    ),
    "nobody of two that wait for each other": (
        [
            two_groups(0, group(5, True, members=(0, 1)), group(2, False, members=(0, 1))),
            two_groups(1, group(4, False, members=(0, 1)), group(3, True, members=(0, 1))),
        ],
        None,
        "ranks wait for each other in different process groups: "
        "rank 0 in all_reduce #5 of group 1, rank 1 in all_reduce #3 of group 2",
    ),
    "a rank outside of the waiting group is not late": (
        [
            two_groups(0, group(5, True, members=(0, 1)), None),
            two_groups(1, group(4, False, members=(0, 1)), None),
            two_groups(2, None, group(1, False, members=(2, 3))),
        ],
        1,
        "rank 1 on node 0 had not entered all_reduce #5 that 1 rank waits in",
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_named_is(name: str) -> None:
    accounts, culprit, words = TABLES[name]
    finding = judge(accounts)
    assert finding.hung
    assert finding.rank == culprit
    assert words in finding.message


@pytest.mark.parametrize("name", TABLES)
def test_the_order_of_the_answers_changes_nothing(name: str) -> None:
    accounts, _, _ = TABLES[name]
    assert judge(reversed(accounts)) == judge(accounts)


def test_ranks_that_wait_for_nobody_are_no_hang() -> None:
    assert judge([computes(0), computes(1, 3), ended(2)]) == Finding(False, "no rank waits in a collective")


def test_a_slow_answer_on_a_busy_machine_is_not_silence() -> None:
    assert judge([*OTHERS_WAIT, silent(1, 1.2)], patience=1.5).rank is None
    assert judge([*OTHERS_WAIT, silent(1, 1.6)], patience=1.5).rank == 1


def test_an_account_is_read_back_as_it_was_sent() -> None:
    sent = {
        "rank": 1, "node": 0, "pid": 7, "state": "S", "channel": "futex", "rss": 1, "silent": 0.0, "watched": True,
        "where": "train.py:40 misbehave", "sums": [20, 20], "tail": ["a"], "left": ["import", "no"],
        "groups": evidence.short_groups({
            "0": {"members": [0, 1, 2, 3], "entered": 21, "completed": 20, "waits": True, "operation": "all_reduce",
                  "sizes": [[1000]]},
            "unused": {"members": [1], "entered": 0, "completed": 0, "waits": False, "operation": "", "sizes": []},
        }),
    }  # fmt: skip
    account = Account.from_json(sent)
    assert account.groups == {"0": group(21, True)}
    assert (account.where, account.tail, account.left) == ("train.py:40 misbehave", ("a",), ("import", "no"))


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([], []),
        ([5], [(5, 5, 1)]),
        ([0, 1, 2, 3], [(0, 3, 1)]),
        ([1, 9, 17], [(1, 17, 8)]),
        ([0, 1, 8, 9], [(0, 1, 1), (8, 9, 1)]),
        ([0, 5, 6, 7], [(0, 5, 5), (6, 7, 1)]),
    ],
)
def test_members_are_sent_as_ranges(numbers: list[int], expected: list[tuple[int, int, int]]) -> None:
    assert evidence.ranges(numbers) == expected
    assert [n for first, last, step in expected for n in range(first, last + 1, step)] == numbers


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([], ""),
        ([("/w/train.py", 40, "misbehave"), ("/w/train.py", 50, "<module>")], "train.py:40 misbehave"),
        (
            [("/v/lib/python3.11/site-packages/torch/x.py", 1, "all_reduce"), ("/w/train.py", 9, "step")],
            "train.py:9 step",
        ),
        ([("/usr/lib/python3.11/re.py", 1, "match")], "re.py:1 match"),
    ],
)
def test_where_is_the_innermost_line_of_the_jobs_own_code(frames: list[evidence.Frame], expected: str) -> None:
    assert evidence.where(frames) == expected


def test_a_dump_shows_the_main_thread_and_not_ours() -> None:
    dump = (
        "Thread 0x7f59 (most recent call first):\n"
        '  File "/x/allranks/node/watch/inside.py", line 115 in _serve\n\n'
        "Current thread 0x7f5a (most recent call first):\n"
        '  File "/w/train.py", line 10 in misbehave\n'
        '  File "/w/train.py", line ??? in <module>\n'
    )
    text = evidence.without_ours(dump)
    assert "inside.py" not in text
    assert evidence.dumped_frames(text) == [("/w/train.py", 10, "misbehave"), ("/w/train.py", 0, "<module>")]


def test_the_table_shows_every_rank_and_group_in_a_line() -> None:
    text = table_text("the finding", [silent(1, state="T"), ended(2), waits(0), unknown(3)])
    assert [line.split() for line in text.splitlines()] == [
        ["the", "finding"],
        [],
        ["rank", "node", "state", "answers", "group", "entered", "completed", "in", "where"],
        ["0", "0", "S", "yes", "0", "21", "20", "all_reduce", "#21", "[1000]", "train.py:9", "step"],
        ["1", "0", "T", "silent", "3.2", "s", "-", "-", "-", "-", "train.py:40", "misbehave"],
        ["2", "1", "ended", "-", "-", "-", "-", "-"],
        ["3", "1", "no", "thread", "-", "-", "-", "-", "-"],
    ]
