"""Who keeps the others waiting: a rule over what all ranks answered, and the words for it.

In this order: a rank that does not answer, one that is ending and does not come to its end, a rank that has ended, the
rank that entered the fewest collectives of a group in which others wait, the minority's operation where all have
entered, the only rank of which nothing is known. Else nobody is named: a wrong name costs more than none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

# Operations whose input must have the same size on all ranks.
SAME_SIZES = ("all_reduce", "broadcast", "reduce")
SHOWN = 8
LONGEST = 1000


@dataclass(frozen=True)
class Group:
    """One process group as one of its ranks sees it. ``operation`` is the first unfinished one, else the last."""

    members: Tuple[int, ...]
    entered: int
    completed: int
    waits: bool
    operation: str = ""
    sizes: Tuple[Any, ...] = ()

    @property
    def awaited(self) -> int:
        """The number of the collective that this rank waits in."""
        return self.completed + 1

    def call(self) -> str:
        return f"{self.operation or 'collective'} #{self.awaited if self.waits else self.entered}"


@dataclass(frozen=True)
class Account:
    """One rank's answer, with what the kernel says of it.

    ``silent`` is for how many seconds it has not answered (0: it answers); ``state`` a letter of proc(5) and
    ``channel`` the kernel function it sleeps in; ``where`` the innermost line of the job's own code. A rank without
    a watching thread is not ``watched``: what it says nothing of is not held against it. One whose python is ending
    has ``left``: kind and words of the exception that ends it, two empty texts where there is none.
    """

    rank: int
    node: int
    state: str = "S"
    channel: str = ""
    silent: float = 0.0
    watched: bool = True
    ended: bool = False
    where: str = ""
    groups: Mapping[str, Group] = field(default_factory=dict)
    tail: Tuple[str, ...] = ()
    left: Optional[Tuple[str, str]] = None

    @property
    def waits(self) -> bool:
        return any(group.waits for group in self.groups.values())

    @property
    def is_known(self) -> bool:
        """Whether what it does not say counts: a rank that is slow to answer may be anywhere."""
        return self.watched and self.silent == 0

    @property
    def stopped(self) -> bool:
        return self.state in ("T", "t")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Account:
        """Raises KeyError, TypeError or ValueError for anything but what an agent sends."""
        groups = {str(name): _group(value) for name, value in data["groups"].items()}
        return cls(
            rank=int(data["rank"]), node=int(data["node"]), state=str(data["state"])[:1],
            channel=str(data["channel"])[:64], silent=float(data["silent"]), watched=bool(data["watched"]),
            where=str(data["where"])[:200], groups=groups, tail=tuple(str(line) for line in data["tail"]),
            left=None if data["left"] is None else (str(data["left"][0]), str(data["left"][1])[:LONGEST]),
        )  # fmt: skip


def _group(data: Mapping[str, Any]) -> Group:
    return Group(
        tuple(int(rank) for first, last, step in data["members"] for rank in range(first, last + 1, step)),
        int(data["entered"]), int(data["completed"]), bool(data["waits"]),
        str(data["operation"])[:64], tuple(map(str, data["sizes"])),
    )  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """``hung`` is False when no rank is silent and none waits; ``rank`` is None when nobody can be named.

    ``kind`` is that of the cause: a rank that an exception ends has not hung by itself.
    """

    hung: bool
    message: str
    rank: Optional[int] = None
    kind: str = "hang"


def judge(accounts: Iterable[Account], patience: float = 0.0) -> Finding:
    """Apply the rule to the accounts of all ranks, those that have ended included.

    A rank is silent when it has not answered for more than ``patience`` seconds: a busy machine is slow to answer too.
    """
    table = {account.rank: account for account in sorted(accounts, key=lambda account: account.rank)}
    silent = [account for account in table.values() if account.silent > patience and not account.ended]
    waiting = [account for account in table.values() if account.waits and account not in silent]
    if silent:
        return _blame_silent(silent, waiting)
    if not waiting:
        return Finding(False, "no rank waits in a collective")
    leaving = [account for account in table.values() if account.left is not None and not account.ended]
    if leaving:
        return _blame_leaving(leaving, waiting)
    return _blame_late(_late(table)) or _blame_minority(table, waiting) or _blame_unknown(table, waiting)


# ---- a rank that does not answer


def _blame_silent(silent: Sequence[Account], waiting: Sequence[Account]) -> Finding:
    culprit = max(silent, key=lambda a: (a.stopped, a.silent, -a.rank))
    others = [a.rank for a in silent if a is not culprit]
    same = f" (nor {_answer(others)} {_ranks(others)})" if others else ""
    message = f"{_name(culprit)} {_silence(culprit)}{same}{_awaited_by(culprit, waiting)}{_was(culprit)}"
    return Finding(True, message, culprit.rank)


def _answer(ranks: Sequence[int]) -> str:
    return "does" if len(ranks) == 1 else "do"


def _silence(account: Account) -> str:
    if account.stopped:
        channel = f", {account.channel}" if account.channel not in ("", "0") else ""
        return f"is stopped (state {account.state}{channel}) and has not answered for {account.silent:.1f} s"
    return f"has not answered for {account.silent:.1f} s: it holds the GIL (state {account.state})"


def _awaited_by(culprit: Account, waiting: Sequence[Account]) -> str:
    """What the others wait in, if they wait in one thing; the silent rank's own numbers are not known."""
    calls = Counter(
        (name, group.call()) for a in waiting for name, group in a.groups.items()
        if group.waits and (not group.members or culprit.rank in group.members)
    )  # fmt: skip
    if not calls:
        return ""
    (_, call), count = calls.most_common(1)[0]
    return f"; {_count(count)} in {call}"


# ---- a rank whose python is ending, and whose process stays


def _blame_leaving(leaving: Sequence[Account], waiting: Sequence[Account]) -> Finding:
    culprit = min(leaving, key=lambda account: (not (account.left or ("",))[0], account.rank))
    kind, words = culprit.left or ("", "")
    awaited = _awaited_by(culprit, waiting)
    if kind:
        return Finding(True, f"{_name(culprit)}: {words}; its process has not ended since{awaited}", culprit.rank, kind)
    text = f"{_name(culprit)} is leaving (its python is ending, or is another program now) and has not ended{awaited}"
    return Finding(True, text, culprit.rank)


# ---- a rank that has not entered what others wait in


@dataclass(frozen=True)
class _Late:
    """``account`` has not entered the collective ``call`` of a group in which ``waiters`` sit."""

    account: Account
    entered: int
    call: str
    waiters: Tuple[int, ...]
    group_size: int


def _late(table: Mapping[int, Account]) -> List[_Late]:
    found = []
    for name in {name for account in table.values() for name in account.groups}:
        seen = {rank: account.groups[name] for rank, account in table.items() if name in account.groups}
        members = set(seen) | {rank for group in seen.values() for rank in group.members}
        waiters = tuple(sorted(rank for rank, group in seen.items() if group.waits))
        if not waiters:
            continue
        first = min((seen[rank] for rank in waiters), key=lambda group: group.awaited)
        for rank in members & set(table):
            entered = seen[rank].entered if rank in seen else 0
            if entered < first.awaited and (table[rank].is_known or table[rank].ended):
                found.append(_Late(table[rank], entered, first.call(), waiters, len(members)))
    return found


def _blame_late(late: Sequence[_Late]) -> Optional[Finding]:
    """Ended ones first; then those that wait for nobody themselves: who waits elsewhere is late because of another."""
    if not late:
        return None
    ended = [one for one in late if one.account.ended]
    free = [one for one in late if not one.account.waits]
    if not ended and not free:
        return _blame_cycle(late)
    candidates = ended or free
    lowest = min(one.entered for one in candidates)
    chosen = sorted((one for one in candidates if one.entered == lowest), key=lambda one: one.account.rank)
    ranks = sorted({one.account.rank for one in chosen})
    one = chosen[0]
    verb = "has ended and never entered" if one.account.ended else "had not entered"
    if len(ranks) > len(one.waiters) and not ended:
        return Finding(True, f"{_ranks(ranks)} had not entered {one.call} that {_count(len(one.waiters))} in")
    also = f" (nor had {_ranks(ranks[1:])})" if ranks[1:] else ""
    message = f"{_name(one.account)} {verb} {one.call}{also} that {_count(len(one.waiters))} in{_was(one.account)}"
    return Finding(True, message, one.account.rank)


def _blame_cycle(late: Sequence[_Late]) -> Finding:
    calls = {one.account.rank: _waits_in(one.account) for one in late}
    where = ", ".join(f"rank {rank} in {call}" for rank, call in sorted(calls.items())[:SHOWN])
    return Finding(True, f"ranks wait for each other in different process groups: {where}")


def _waits_in(account: Account) -> str:
    name, group = next((name, group) for name, group in account.groups.items() if group.waits)
    return f"{group.call()} of group {name}"


# ---- all have entered


def _blame_minority(table: Mapping[int, Account], waiting: Sequence[Account]) -> Optional[Finding]:
    for name in sorted({name for account in waiting for name in account.groups if account.groups[name].waits}):
        calls = {a.rank: _kind(a.groups[name]) for a in waiting if name in a.groups and a.groups[name].waits}
        if len(set(calls.values())) < 2:
            continue
        numbers = Counter(calls.values())
        usual, most = numbers.most_common(1)[0]
        odd = sorted(rank for rank, call in calls.items() if call != usual)
        group = table[odd[0]].groups[name]
        if most > len(calls) / 2:
            culprit = table[odd[0]]
            also = f" (as {_are(odd[1:])} {_ranks(odd[1:])})" if odd[1:] else ""
            theirs = f"collective #{group.awaited}, in which {_count(most, 'are')} in {usual}"
            text = f"{_name(culprit)} is in {calls[culprit.rank]}{also} as {theirs}{_was(culprit)}"
            return Finding(True, text, culprit.rank)
        where = ", ".join(f"{_ranks([r for r in calls if calls[r] == call])} in {call}" for call in numbers)
        return Finding(True, f"ranks are in different operations as collective #{group.awaited}: {where}")
    return None


def _kind(group: Group) -> str:
    operation = group.operation or "a collective"
    return f"{operation} of {' '.join(group.sizes)}" if group.operation in SAME_SIZES else operation


def _are(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _blame_unknown(table: Mapping[int, Account], waiting: Sequence[Account]) -> Finding:
    """All that are known have entered: the one of which nothing is known has not, if there is but one."""
    calls: Dict[str, int] = Counter(_waits_in(account) for account in waiting)
    call, count = max(calls.items(), key=lambda item: item[1])
    members = {
        rank for account in waiting for group in account.groups.values() if group.waits for rank in group.members
    }
    unknown = [a for a in table.values() if a.rank in members and not a.watched and not a.ended]
    if not unknown:
        return Finding(True, f"{_count(count)} in {call} that all its ranks have entered and none completes")
    if len(unknown) > 1:
        silent = _ranks([account.rank for account in unknown])
        return Finding(True, f"{_count(count)} in {call}, and of {silent} nothing is known")
    last = f"; its last line: {unknown[0].tail[-1]}" if unknown[0].tail else ""
    message = f"{_name(unknown[0])} does not say whether it entered {call} that {_count(count)} in{last}"
    return Finding(True, message, unknown[0].rank)


# ---- words


def _name(account: Account) -> str:
    return f"rank {account.rank} on node {account.node}"


def _count(number: int, verb: str = "wait") -> str:
    if verb == "are":
        return "1 rank is" if number == 1 else f"{number} ranks are"
    return "1 rank waits" if number == 1 else f"{number} ranks wait"


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:SHOWN])) + (", ..." if len(ranks) > SHOWN else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"


def _was(account: Account) -> str:
    return f"; it was in {account.where}" if account.where else ""


def table_text(finding: str, accounts: Iterable[Account]) -> str:
    """Render the table for people: one line a rank and process group."""
    rows = [("rank", "node", "state", "answers", "group", "entered", "completed", "in", "where")]
    for account in sorted(accounts, key=lambda a: a.rank):
        answers = "ended" if account.ended else "no thread" if not account.watched else "yes"
        answers = f"silent {account.silent:.1f} s" if account.silent > 0 and not account.ended else answers
        who = (str(account.rank), str(account.node), account.state, answers)
        where = account.where or account.channel or "-"
        for name, group in sorted(account.groups.items()):
            call = f"{group.call()} {' '.join(group.sizes)}".strip() if group.waits else "-"
            rows.append((*who, name, str(group.entered), str(group.completed), call, where))
        if not account.groups:
            rows.append((*who, "-", "-", "-", "-", where))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    return "\n".join([finding, "", *lines, ""])
