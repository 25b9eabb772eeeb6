"""What the gangs of all engines meet at the same moment, because they have a host in common.

Each gang is looked at by itself: its time is from the fault, or from its end, to its own first step after that.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from bench.faults.gangs import BROKEN, Gang, Row, Wrong, check_restart
from tests.cluster import faults
from tests.cluster.cluster import Cluster

TOLD_WITHIN = 120.0
Rows = dict[str, Row]
Statuses = dict[str, dict[str, Any]]


def each(gangs: Sequence[Gang], rows: Rows, work: Callable[[Gang], None]) -> None:
    """Do it for all gangs at once; what goes wrong with one is in its own row."""

    def one(gang: Gang) -> None:
        try:
            work(gang)
        except BROKEN as problem:
            rows[gang.engine].wrong.append(str(problem))

    with ThreadPoolExecutor(len(gangs)) as pool:
        list(pool.map(one, gangs))


def brief_cut(cluster: Cluster, gangs: Sequence[Gang], rows: Rows, host: str) -> None:
    """5 s without network for the pods of a host: nothing happens."""
    before, pods = _running(gangs, rows), {gang.engine: gang.pods() for gang in gangs}
    with _cut(cluster, gangs, before, host):
        time.sleep(5)
    healed = time.time()

    def look(gang: Gang) -> None:
        attempt = before[gang.engine]["attempt"]
        seen = gang.steps(attempt, after=healed, seconds=30)
        rows[gang.engine].took.append(max(min(at for at in steps if at > healed) for steps in seen.values()) - healed)
        after = gang.status()
        if (after["attempt"], gang.pods()) != (attempt, pods[gang.engine]):
            raise Wrong(f"attempt {after['attempt']} came of it: {[one['message'] for one in after['causes'][-1:]]}")

    each(_those(gangs, before), rows, look)


def long_cut(cluster: Cluster, gangs: Sequence[Gang], rows: Rows, host: str) -> None:
    """60 s without network: another attempt, and none of its steps before the last one of the attempt before it."""
    before = _running(gangs, rows)
    with _cut(cluster, gangs, before, host):
        time.sleep(60)
    healed = time.time()

    def look(gang: Gang) -> None:
        attempt = before[gang.engine]["attempt"]
        now = gang.running(attempt)["attempt"]
        after = gang.steps(now)
        rows[gang.engine].took.append(gang.back(now) - healed)
        last = max(max(steps) for steps in gang.steps(attempt).values())
        if (first := min(min(steps) for steps in after.values())) < last:
            raise Wrong(f"attempt {now} stepped {last - first:.2f} s before the last step of attempt {attempt}")

    each(_those(gangs, before), rows, look)


def lose_power(cluster: Cluster, gangs: Sequence[Gang], rows: Rows, host: str) -> None:
    """A host's power is lost, and the gangs may give up what it holds."""
    before = _running(gangs, rows)
    nodes = _nodes(gangs, rows, before, host)

    def look(gang: Gang) -> None:
        after = gang.running(before[gang.engine]["attempt"])
        rows[gang.engine].took.append(gang.back(after["attempt"]) - began)
        check_restart(before[gang.engine], after, {"kind": "node_lost", "node": nodes[gang.engine]})

    began = time.time()
    with _without_power(cluster, host):
        each([gang for gang in gangs if gang.engine in nodes], rows, look)


def told_of_power(cluster: Cluster, gangs: Sequence[Gang], rows: Rows, host: str) -> None:
    """The same where they may not: status tells the way out (the time is until then), and that is one."""
    before = _running(gangs, rows)
    nodes = _nodes(gangs, rows, before, host)

    def look(gang: Gang) -> None:
        attempt = before[gang.engine]["attempt"]
        told = gang.until("told how to free it", lambda now: "free it with: kubectl" in now["reason"], TOLD_WITHIN)
        rows[gang.engine].took.append(time.time() - began)
        if f"node {host} is lost" not in told["reason"]:
            raise Wrong(f"it is told otherwise: {told['reason']}")
        for command in told["reason"].partition("free it with: ")[2].split(" && "):
            gang.cluster.kubectl(*shlex.split(command)[1:])
        gang.back(gang.running(attempt)["attempt"])

    began = time.time()
    with _without_power(cluster, host):
        each([gang for gang in gangs if gang.engine in nodes], rows, look)


FAULTS = {"cut-5s": brief_cut, "cut-60s": long_cut, "power": lose_power, "power-told": told_of_power}
REMEMBERING, FORGETTING = ("cut-5s", "cut-60s", "power"), ("power-told",)
"""Met by gangs that may ask their API server, and by those that may not."""


def _running(gangs: Sequence[Gang], rows: Rows) -> Statuses:
    """The status of each that runs and steps."""
    found: Statuses = {}

    def look(gang: Gang) -> None:
        status = gang.running()
        gang.steps(status["attempt"])
        found[gang.engine] = status

    each(gangs, rows, look)
    return found


def _those(gangs: Sequence[Gang], there: Statuses) -> list[Gang]:
    return [gang for gang in gangs if gang.engine in there]


def _nodes(gangs: Sequence[Gang], rows: Rows, before: Statuses, host: str) -> dict[str, int]:
    """Which node of each gang is on the host; one that has none there is not asked of."""
    found: dict[str, int] = {}

    def look(gang: Gang) -> None:
        found[gang.engine] = gang.on(before[gang.engine], host)

    each(_those(gangs, before), rows, look)
    if not found:
        raise Wrong(f"no gang has a node on {host}")
    return found


@contextmanager
def _cut(cluster: Cluster, gangs: Sequence[Gang], before: Statuses, host: str) -> Iterator[None]:
    cut: list[tuple[str, str]] = []
    try:
        for gang in _those(gangs, before):
            pod = gang.pod(before[gang.engine], gang.on(before[gang.engine], host))
            faults.cut_pod(cluster, pod, gang.space.name)
            cut.append((pod, gang.space.name))
        yield
    finally:
        for pod, namespace in cut:
            faults.heal_pod(cluster, pod, namespace)


@contextmanager
def _without_power(cluster: Cluster, host: str) -> Iterator[None]:
    faults.power_off(cluster, host)
    try:
        yield
    finally:
        faults.power_on(cluster, host)
        cluster.kubectl("wait", "--for=condition=Ready", f"node/{host}", "--timeout=90s")
