"""The coordinator's part of a preflight: every node checked, some rounds of pairs measured, the bad node named.

No input or output: messages come in by ``heard``, go out by ``Member.send``. It is over before user code starts.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from allranks.fabric import pairs
from allranks.fabric.agree import disagreements, merged, skews
from allranks.fabric.decide import Finding
from allranks.node.gang import Gang
from allranks.node.rollcall import Member

MESSAGES = ("checked", "probed")
CHECKS, ROUND = 60.0, 40.0
"""Seconds for all nodes' checks, and for one round of pairs."""

MOST_ROUNDS = 4
"""A node that is slow is so with everybody; who is bad is known after some rounds, whatever the gang's size."""

SLOW = 0.25
"""Of the best: one stream of TCP varies by two or three on machines that do something else as well."""

ENOUGH = 1e9
"""Bytes a second from which a way is never called slow: no preflight of TCP can tell more."""

Speeds = Dict[Tuple[int, int], float]


class Preflight:
    """``done`` says that the gang may start, or that ``findings`` say why not."""

    def __init__(self, gang: Gang, clock: Callable[[], float] = time.monotonic) -> None:
        self._gang, self._clock = gang, clock
        self.done = not gang.preflight
        self.findings: List[Finding] = []
        self._checked: Dict[int, Mapping[str, Any]] = {}
        self._until: Optional[float] = None
        self._rounds: Optional[pairs.Rounds] = None
        self._groups: List[pairs.Group] = []
        self._number = 0
        self._results: pairs.Speeds = {}
        self._speeds: pairs.Speeds = {}
        self._whys: Dict[pairs.Group, str] = {}
        self._sends: Speeds = {}
        self._repeats = 0

    def heard(self, node: int, message: Mapping[str, Any]) -> None:
        """Raises KeyError, TypeError or ValueError for a message that is malformed."""
        if self.done:
            return
        if message["type"] == "checked":
            found = [Finding.from_json(one).of(node) for one in message["findings"][:50]]
            facts = {str(name)[:40]: str(value)[:100] for name, value in list(message["facts"].items())[:50]}
            place = {"address": str(message["address"])[:200], "port": int(message["port"])}
            self._checked[node] = {"findings": found, "facts": facts, **place}
        elif message["round"] == self._number:
            pair = (node, int(message["peer"]))
            if pair in self._groups:
                there, back, why = float(message["there"]), float(message["back"]), str(message["why"])[:300]
                self._sends[pair] = max(there, self._sends.get(pair, 0.0))
                self._sends[pair[::-1]] = max(back, self._sends.get(pair[::-1], 0.0))
                self._results[pair] = None if why else min(there, back)
                self._whys[pair] = why

    @property
    def awaited(self) -> str:
        """What it waits for, in one line."""
        missing = [str(node) for node in range(self._gang.nodes) if node not in self._checked]
        if missing:
            return f"preflight: waiting for the checks of node {', '.join(missing[:8])}"
        return f"preflight: measuring the ways between nodes, round {self._number + 1}"

    def tick(self, members: Mapping[int, Member]) -> None:
        """Let time pass; call it while all nodes are here and idle."""
        if self._until is None:
            self._until = self._clock() + CHECKS
        late = self._clock() > self._until
        if self._rounds is None:
            if len(self._checked) == self._gang.nodes or late:
                self._after_checks(members)
        elif len(self._results) == len(self._groups) or late:
            self._next(members)

    def _after_checks(self, members: Mapping[int, Member]) -> None:
        for node in range(self._gang.nodes):
            if node not in self._checked:
                what = f"its checks were not over within {CHECKS:g} s"
                self.findings.append(Finding("error", "preflight", what, "see the agent's log", "", (node,)))
        for one in self._checked.values():
            self.findings += one["findings"]
        self.findings += disagreements({node: one["facts"] for node, one in self._checked.items()})
        self.findings += skews({node: member.clock_offset for node, member in members.items()})
        if self.fatal or self._gang.nodes == 1:
            self._end()
            return
        self._rounds = pairs.pairwise(self._gang.nodes, MOST_ROUNDS, SLOW, ENOUGH)
        self._send(next(self._rounds), members)

    def _send(self, groups: List[pairs.Group], members: Mapping[int, Member]) -> None:
        self._groups, self._results = groups, {}
        self._until = self._clock() + ROUND
        for first, second in groups:
            peer = self._checked[second]
            if first in members:
                members[first].send(
                    type="probe", round=self._number, peer=second, address=peer["address"], port=peer["port"]
                )

    def _next(self, members: Mapping[int, Member]) -> None:
        assert self._rounds is not None
        found = {group: self._results.get(group) for group in self._groups}
        pairs.keep(self._speeds, found)
        self._number += 1
        try:
            self._send(self._rounds.send(found), members)
        except StopIteration:
            self._last(members)

    def _last(self, members: Mapping[int, Member]) -> None:
        """Of two nodes there is no other pair to compare with: one that sends slowly is measured again first."""
        if self._slow_sender() is not None and self._repeats < pairs.AGAIN:
            self._repeats += 1
            self._rounds = pairs.pairwise(self._gang.nodes, MOST_ROUNDS, SLOW, ENOUGH)
            self._send(next(self._rounds), members)
            return
        self._judge()
        self._end()

    def _slow_sender(self) -> Optional[Tuple[int, int]]:
        """Of two nodes the one that sends much slower than it is sent to, and the other; None where neither does."""
        if self._gang.nodes == 2:
            for node, other in ((0, 1), (1, 0)):
                out, back = self._sends.get((node, other), 0.0), self._sends.get((other, node), 0.0)
                if out and out < SLOW * back and out < ENOUGH:
                    return node, other
        return None

    def _judge(self) -> None:
        judged = pairs.judge(self._speeds, SLOW, enough=ENOUGH)
        why = "every collective waits for the slowest: the whole gang would run at its speed"
        fix = "leave it out (schedule.node_selector), look at its NIC (ethtool, ip -s link), or: allranks bench --pairs"
        for node in judged.broken:
            trouble = next((said for pair, said in self._whys.items() if node in pair and said), "no answer")
            fix_port = "let the gang's nodes reach each other on all TCP ports (NetworkPolicy, firewall)"
            self.findings.append(
                Finding("error", "network", f"it reached no other node: {trouble}", fix_port, why, (node,))
            )
        for node in judged.slow:
            reached = max(speed or 0.0 for pair, speed in self._speeds.items() if node in pair)
            what = f"it is slow: {_rate(reached)} with any other node, where the best pair has {_rate(judged.best)}"
            self.findings.append(Finding("error", "network", what, fix, why, (node,)))
        for pair in (*judged.links, *judged.unsure):
            self._judge_way(pair, fix, why)
        sender = self._slow_sender()
        if sender is not None:
            out, back = self._sends[sender], self._sends[sender[::-1]]
            what = f"it is slow: it sends at {_rate(out)} and receives at {_rate(back)}"
            self.findings.append(Finding("error", "network", what, fix, why, sender[:1]))

    def _judge_way(self, pair: pairs.Group, fix: str, why: str) -> None:
        speed = self._speeds.get(pair)
        how = _rate(speed) if speed else f"nothing got through ({self._whys.get(pair) or 'no answer'})"
        level = "warning" if speed else "error"
        self.findings.append(Finding(level, "network", f"the way between them is slow: {how}", fix, why, pair))

    def _end(self) -> None:
        self.findings = merged(self.findings)
        self.done = True

    @property
    def fatal(self) -> Optional[Finding]:
        """The first finding with which the gang may not start."""
        return next((one for one in self.findings if one.level == "error"), None)


def _rate(speed: float) -> str:
    return f"{speed / 1e6:.4g} MB/s"
