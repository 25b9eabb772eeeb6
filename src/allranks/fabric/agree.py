"""What differs between nodes and should not. No input or output."""

from __future__ import annotations

from collections import defaultdict
from typing import Dict, List, Mapping, Sequence

from allranks.fabric.decide import Finding

FATAL = frozenset(["torch", "NCCL"])
"""Ranks with different versions of these do not find each other, or hang in the first collective."""

WHY = {
    "MTU": "large packets of one node do not reach the other, or are cut: collectives hang while ping works",
    "GPUs": "a rank without a GPU of its own ends, and all others with it",
    "fabric": "ranks on one transport do not reach those on another",
}
SAME_IMAGE = "use the same image, by digest, and the same environment on all nodes"
FIX = {"MTU": "ip link set dev DEVICE mtu N, the same on all nodes", "GPUs": "the same resources for all nodes"}
MOST_SKEW = 1.0
"""Seconds. Beyond it the order of events in logs, and expiring tokens, deceive."""


def disagreements(facts: Mapping[int, Mapping[str, str]]) -> List[Finding]:
    """A finding for each fact that is not the same everywhere, naming the few that differ from the many."""
    names = sorted({name for one in facts.values() for name in one})
    return [found for name in names for found in _differing(name, facts)]


def _differing(name: str, facts: Mapping[int, Mapping[str, str]]) -> List[Finding]:
    by_value: Dict[str, List[int]] = defaultdict(list)
    for node, one in sorted(facts.items()):
        by_value[one.get(name, "none")].append(node)
    if len(by_value) < 2:
        return []
    ordered = sorted(by_value.items(), key=lambda item: -len(item[1]))
    told = ", ".join(f"{value} on {nodes_in_words(nodes)}" for value, nodes in ordered[:4])
    odd = [node for _, nodes in ordered[1:] for node in nodes]
    why = WHY.get(name, "ranks of different versions disagree on what they send")
    level = "error" if name in FATAL else "warning"
    return [Finding(level, name, f"it differs: {told}", FIX.get(name, SAME_IMAGE), why, tuple(odd))]


def skews(offsets: Mapping[int, float]) -> List[Finding]:
    """Clocks that are off from node 0's, in seconds."""
    fix = "chronyc makestep; start chronyd"
    why = "logs of different nodes cannot be put in order, and certificates and tokens may not be valid yet"
    return [
        Finding("warning", "clock", f"it is {offset:+.1f} s from node 0's", fix, why, (node,))
        for node, offset in sorted(offsets.items())
        if abs(offset) > MOST_SKEW
    ]


def merged(findings: Sequence[Finding]) -> List[Finding]:
    """The same finding of several nodes once, errors first."""
    by_text: Dict[Finding, List[int]] = defaultdict(list)
    for one in findings:
        by_text[one.of()].extend(one.nodes)
    order = {"error": 0, "warning": 1, "note": 2}
    put = [text.of(*sorted(set(nodes))) for text, nodes in by_text.items()]
    return sorted(put, key=lambda one: (order.get(one.level, 3), one.nodes))


def nodes_in_words(nodes: Sequence[int]) -> str:
    """``node 3``, ``nodes 0, 1 and 5 more``."""
    some = ", ".join(map(str, nodes[:4])) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
    return f"node{'s' if len(nodes) > 1 else ''} {some}"
