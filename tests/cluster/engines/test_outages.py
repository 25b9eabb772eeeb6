"""Half a minute without a kubelet, without the API server, without controllers: no rank notices, on no engine."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from typing import Any

import pytest

from tests.cluster import faults
from tests.cluster.cluster import Cluster
from tests.cluster.engines.conftest import ENGINES, Space
from tests.cluster.engines.kubectl import kubectl
from tests.cluster.engines.test_gangs import pods, python
from tests.cluster.processes import wait

pytestmark = pytest.mark.long

LASTS = 30.0
STALL = 10.0  # seconds between two steps of 0.2 that a machine as busy as can be may need
CONTROLLERS = ("jobset", "mpi-operator", "trainer", "training-operator", "kueue", "kube-controller-manager",
               "kube-scheduler")  # fmt: skip
STEPS = """
import os, time
for step in range(100000):
    print(f"step {step} of {os.getpid()} at {time.time():.3f}", flush=True)
    time.sleep(0.2)
"""


@pytest.fixture
def gangs(space: Space) -> list[str]:
    """A gang of each engine, named as it, all of them stepping."""
    for engine in ENGINES:
        space.start(engine, space.spec(name=engine, run=python(STEPS)))
    for engine in ENGINES:
        space.until(lambda status: status["phase"] == "running", engine)
    return ENGINES


@contextmanager
def kubelet_of_a_node(cluster: Cluster, space: Space) -> Iterator[None]:
    """Of a node with pods of these gangs, in a cluster that waits for a silent one as long as Kubernetes' own."""
    node = kubectl("-n", space.name, "get", "pods", "-o", "jsonpath={.items[0].spec.nodeName}")
    with faults.patient(cluster), faults.kubelet_stopped(cluster, node):
        yield
    kubectl("wait", "--for=condition=Ready", f"node/{node}", "--timeout=60s")


OUTAGES: dict[str, Callable[[Cluster, Space], AbstractContextManager[None]]] = {
    "the kubelet of a node": kubelet_of_a_node,
    "all operators and controllers": lambda cluster, space: faults.stopped(cluster, *CONTROLLERS),
}


@pytest.mark.parametrize("without", OUTAGES)
def test_an_outage_disturbs_no_rank(space: Space, gangs: list[str], without: str) -> None:
    before = {engine: space.status(engine) for engine in gangs}
    there = pods(space)
    began = time.time()
    with OUTAGES[without](space.cluster, space):
        time.sleep(LASTS)
    ended = time.time()
    time.sleep(5)  # what the return of whoever was away brings about
    undisturbed(space, before, there, began, ended)


def test_an_outage_of_the_api_server_disturbs_no_rank_and_nobody_who_follows(space: Space, gangs: list[str]) -> None:
    before = {engine: space.status(engine) for engine in gangs}
    there = pods(space)
    with follower(space, "logs", "-f", "jobset") as logs, follower(space, "status", "-w", "mpijob") as watch:
        words = ("run", "--engine", "jobset", str(space.spec(name="followed", run=python(STEPS))))
        with follower(space, *words) as run:
            run.await_said(r"step \d+ of")
            logs.await_said(r"step \d+ of")
            watch.await_said("running")
            began = time.time()
            with faults.stopped(space.cluster, "kube-apiserver"):
                told_in_one_message(space)
                for one in (logs, run, watch):
                    one.await_said(r"since [\d:]+.* tried again until [\d:]+: the API server of context")
                time.sleep(max(began + LASTS - time.time(), 0))
            ended = time.time()
            for one in (logs, run):
                one.await_said("is seen again, after")
                nothing_is_missing(one, began, ended)
            watch.await_said("is seen again, after")
    undisturbed(space, before, there, began, ended, ("followed",))


def told_in_one_message(space: Space) -> None:
    for verb in (("status", "trainjob"), ("logs", "trainjob"), ("cancel", "trainjob")):
        done = space.allranks(*verb)
        assert (done.returncode, done.stdout) == (69, "")
        assert re.search(r"the API server of context \S+ cannot be reached at https://", done.stderr), done.stderr
        assert "Run trainjob cannot be seen; it was running when this machine saw it last" in done.stderr
        assert "no run named" not in done.stderr


def nothing_is_missing(one: Follower, began: float, ended: float) -> None:
    """Of what each rank printed meanwhile."""
    for rank in range(4):
        one.await_said(rf"rank {rank} \| step \d+ of \d+ at {int(ended) + 1}")
        steps = lines_between(one, rank, began, ended)
        assert steps == list(range(steps[0], steps[0] + len(steps)))
        assert len(steps) > LASTS  # of five a second


def test_a_cancel_where_nobody_clears_away_ends_the_ranks_or_says_whose_turn_it_is(space: Space) -> None:
    """The controller manager ends Jobs, and deletes what belonged to something that is gone."""
    for name in ("asked", "deaf"):
        space.start("jobset", space.spec(name=name, run=python(STEPS)))
    for name in ("asked", "deaf"):
        space.until(lambda status: status["phase"] == "running", name)
    with faults.stopped(space.cluster, "kube-controller-manager"):
        done = space.allranks("cancel", "asked")
        assert (done.returncode, done.stdout) == (0, "run asked: cancelled\n"), done.stderr
        assert "Running" not in phases(space, "asked")
        kubectl("-n", space.name, "delete", "pod", "--wait=false", space.status("deaf")["nodes"][0]["name"])
        done = space.allranks("cancel", "deaf")
        assert done.returncode == 69
        assert "the cluster has yet to tell 1 pod to go; does kube-controller-manager run?" in done.stderr
        kubectl(*done.stderr.strip().rpartition("kubectl ")[2].split(), "--wait=false")
        wait("the pods to end", lambda: "Running" not in phases(space, "deaf"), 30)


def phases(space: Space, name: str) -> str:
    return kubectl("-n", space.name, "get", "pod", "-l", f"allranks.dev/run={name}", "-o", "jsonpath={..phase}")


# What was seen


def undisturbed(
    space: Space, before: dict[str, Any], there: list[str], began: float, ended: float, also: tuple[str, ...] = ()
) -> None:
    """Same attempt, same processes, same pods; each rank went on stepping all the while; nobody is blamed."""
    now = {engine: space.status(engine) for engine in before}
    for engine, status in now.items():
        assert (status["phase"], status["attempt"], status["causes"]) == ("running", 0, []), (engine, status)
        assert status["restarts"]["used"] == 0
        assert pids(status) == pids(before[engine])
        done = space.allranks("logs", engine)
        assert done.returncode == 0, done.stderr
        for rank in range(4):
            stepped(engine, done.stdout, rank, pids(status)[rank], began, ended)
    others = [line for line in pods(space) if line not in there]
    assert set(there) <= set(pods(space)), (there, others)
    assert len(others) == 2 * len(also)
    for name in (*before, *also):
        assert space.allranks("cancel", name).returncode == 0


def pids(status: dict[str, Any]) -> dict[int, int]:
    return {rank["rank"]: rank["pid"] for node in status["nodes"] for rank in node["ranks"]}


def stepped(engine: str, text: str, rank: int, pid: int, began: float, ended: float) -> None:
    """That process alone made all the steps, and none of them late."""
    found = re.findall(rf"^rank {rank} \| step (\d+) of (\d+) at ([\d.]+)$", text, re.MULTILINE)
    assert {int(who) for _, who, _ in found} == {pid}, (engine, rank)
    assert [int(step) for step, _, _ in found] == list(range(len(found))), (engine, rank)
    times = [at for _, _, said in found if began - STALL < (at := float(said)) < ended]
    late = max((b - a for a, b in pairwise(times)), default=LASTS)
    print(f"{engine}: rank {rank} made {len(times)} steps, the longest after {late:.2f} s")
    assert late < STALL
    assert times[-1] > ended - STALL


# Who follows


class Follower:
    """A command line of ours that goes on, and what it has said by now."""

    def __init__(self, space: Space, *words: str) -> None:
        number = len(list(space.folder.glob("*.out")))
        self.out, self.err = (space.folder / f"{number}-{words[0]}.{end}" for end in ("out", "err"))
        argv = [sys.executable, "-m", "allranks", *words]
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    def await_said(self, wanted: str, seconds: float = 120) -> str:
        """Raises AssertionError where it has ended, or does not say it."""
        until = time.monotonic() + seconds
        while not (found := re.search(wanted, self.said())):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < until, self.said()
            time.sleep(0.2)
        return found[0]

    def said(self) -> str:
        """Lines of the ranks, then its own."""
        return self.out.read_text() + self.err.read_text()


@contextmanager
def follower(space: Space, *words: str) -> Iterator[Follower]:
    one = Follower(space, *words)
    try:
        yield one
    finally:
        one.process.kill()  # a gang in a cluster goes on
        one.process.wait(10)


def lines_between(one: Follower, rank: int, began: float, ended: float) -> list[int]:
    found = re.findall(rf"rank {rank} \| step (\d+) of \d+ at ([\d.]+)", one.out.read_text())
    return [int(step) for step, at in found if began < float(at) < ended]
