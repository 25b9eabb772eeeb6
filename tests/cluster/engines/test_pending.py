"""A gang that does not start says why, in one line: on a real cluster, each kind of it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.cluster.engines.conftest import ENGINES, PATIENCE, Space
from tests.cluster.engines.kubectl import apply, kubectl
from tests.cluster.images.kinds import BASE

QUOTA = {
    "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"}, "spec": {"hard": {"pods": "0"}},
}  # fmt: skip
MADE = "secret,configmap,pod,jobset,mpijob.kubeflow.org,trainjob,trainingruntime,pytorchjob"

LIMITS = {
    "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"},
    "spec": {"limits": [{"type": "Container", "max": {"memory": "100Mi"}}]},
}  # fmt: skip
OLD = 'printf %s "the image\'s python3 is 3.6, and allranks needs 3.8 or newer in it" > /dev/termination-log; exit 42'
"""What the agent's first lines do there (tests/node/test_bundle.py); no image here has one so old."""
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "more memory than any node has": ({"resources": {"memory": "900Ti"}}, "Insufficient memory"),
    "GPUs where there are none": ({"resources": {"gpus": 8}}, "Insufficient nvidia.com/gpu"),
    "a host label that no node has": ({"node_selector": {"disk": "no"}}, "node affinity/selector"),
    "an image that cannot be pulled": ({"image": "no.invalid/no:1"}, "image no.invalid/no:1 cannot be pulled"),
    "a claim that is not there": ({"volumes": [{"claim": "nope", "path": "/d"}]}, "no PersistentVolumeClaim nope"),
    "a secret that is not there": ({"env_from": ["secret/nope"]}, "there is no secret nope"),
    "a configmap that is not there": ({"env_from": ["configmap/nope"]}, "there is no configmap nope"),
    "a scheduler that is not there": ({"pod": {"schedulerName": "nobody"}}, "no scheduler has looked at it yet"),
    "a priority that is not there": ({"priority": "nope"}, "no PriorityClass with name nope"),
    "an image without python": ({"container": {"command": ["python9", "-V"]}}, "has no python9"),
    "a python that is too old": ({"container": {"command": ["sh", "-c", OLD]}}, "is 3.6, and allranks needs 3.8"),
    "an init container that fails": (
        {"pod": {"initContainers": [{"name": "fetch", "image": BASE, "command": ["false"]}]}},
        "init container fetch",
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", CASES)
def test_status_tells_what_keeps_a_gang_from_starting(space: Space, why: str) -> None:
    fields, words = CASES[why]
    schedule = {"namespace": space.name}
    for name in ("node_selector", "priority"):
        if name in fields:
            schedule[name] = fields[name]
    rest = {name: value for name, value in fields.items() if name not in schedule}
    space.start("jobset", space.spec(**rest, schedule=schedule))
    status = space.until(lambda status: words in told(status))
    assert status["phase"] in ("pending", "starting", "failed")
    assert "\n" not in status["reason"]


@pytest.mark.parametrize("engine", ENGINES)
def test_run_ends_with_the_way_out_where_the_image_has_no_python(space: Space, engine: str) -> None:
    spec = space.spec(container={"command": ["python9", "-V"]}, failure={"restarts": 0, "grace": "1s"})
    done = space.allranks("run", "--engine", engine, str(spec))
    assert done.returncode == 75, done.stderr
    last = done.stderr.splitlines()[-1]
    assert f"no rank ever ran: image {BASE} has no python9, which allranks' agent needs" in last


def test_status_tells_the_quota_that_keeps_pods_from_being_made(space: Space) -> None:
    apply(space.name, QUOTA)
    space.start("jobset", space.spec())
    status = space.until(lambda status: "quota small" in status["reason"])
    assert status["reason"].startswith("quota small does not allow it: requested pods=1")


def test_a_queue_where_nobody_admits_is_said(space: Space) -> None:
    space.start("jobset", space.spec(schedule={"namespace": space.name, "queue": "research", "gang": "kueue"}))
    status = space.until(lambda status: "queue research" in status["reason"])
    assert status["phase"] == "pending"


def told(status: dict[str, Any]) -> str:
    return " ".join([status["reason"], *(node["reason"] for node in status["nodes"])])


IN_TIME = {"start_timeout": "15s", "grace": "1s"}


@pytest.mark.parametrize("engine", ENGINES)
def test_run_gives_up_a_gang_that_a_quota_never_lets_start(space: Space, engine: str) -> None:
    apply(space.name, QUOTA)
    done = space.allranks("run", "--engine", engine, str(space.spec(failure=IN_TIME)))
    assert done.returncode == 75, done.stderr
    last = done.stderr.splitlines()[-1]
    assert "gang failed in" in last
    assert "node 0 did not start within 15 s: quota small does not allow it: requested pods=1" in last
    assert "allranks cancel" not in last
    status = space.status()
    assert (status["phase"], status["exit_code"]) == ("failed", 75)
    assert [cause["kind"] for cause in status["causes"]] == ["start_timeout"]
    assert nothing_left(space)


def test_a_limit_range_is_told_once_and_judged_beforehand(space: Space) -> None:
    apply(space.name, LIMITS)
    spec = str(space.spec(resources={"memory": "1Gi"}, failure=IN_TIME))
    why = "maximum memory usage per Container is 100Mi, but limit is 1Gi"
    asked = space.allranks("plan", "--check", "--engine", "jobset", spec)
    assert (asked.returncode, why in asked.stderr) == (69, True), asked.stderr
    done = space.allranks("run", "--engine", "jobset", spec)
    assert done.returncode == 75, done.stderr
    (pending,) = [line for line in done.stderr.splitlines() if "pending: " in line]
    last = done.stderr.splitlines()[-1]
    assert pending.endswith(f"pending: 0 of 2 nodes there; its pods are refused: {why}")
    assert last.endswith(f"node 0 did not start within 15 s: its pods are refused: {why}")


def test_run_gives_up_a_gang_that_fits_on_no_node(space: Space) -> None:
    spec = space.spec(resources={"memory": "900Ti"}, failure=IN_TIME)
    done = space.allranks("run", "--engine", "jobset", str(spec))
    assert done.returncode == 75, done.stderr
    assert re.search("node 0 did not start within 15 s: .*Insufficient memory", done.stderr.splitlines()[-1])
    assert nothing_left(space)


def test_status_tells_that_a_gang_which_nobody_follows_should_have_started(space: Space) -> None:
    apply(space.name, QUOTA)
    space.start("jobset", space.spec(failure=IN_TIME))
    status = space.until(lambda status: "longer than failure.start_timeout" in status["reason"])
    assert status["reason"].startswith("quota small does not allow it")
    assert status["reason"].endswith("(15 s); end it with: allranks cancel gang")
    assert status["phase"] == "pending"


def nothing_left(space: Space) -> bool:
    """Of what a run makes; its files go with its object, a moment later."""
    until = time.monotonic() + 60
    while kubectl("-n", space.name, "get", MADE, "-l", "allranks.dev/run", "-o", "name"):
        if time.monotonic() > until:
            return False
        time.sleep(0.5)
    return True


def test_a_gang_that_cannot_start_and_is_ended_by_a_signal_says_so(space: Space) -> None:
    words = [sys.executable, "-m", "allranks", "run", "--engine", "jobset", str(space.spec(image="nowhere.invalid/x"))]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as command:
        assert command.stderr
        assert next(line for line in command.stderr if "waiting for" in line)
        command.send_signal(signal.SIGINT)
        _, err = command.communicate(timeout=PATIENCE)
    assert (command.returncode, err.strip().rpartition(": ")[2]) == (130, "cancelled by Ctrl-C")
