"""Up and down, and up after a kill, leave the machine as it was. Run when no cluster is up."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.footprint import footprint, left
from tests.cluster.layout import CHECKOUT, HOME
from tests.cluster.machine import why_not
from tests.cluster.processes import wait
from tests.cluster.world import remnants

pytestmark = pytest.mark.skipif(why_not() != "", reason=why_not())


@pytest.fixture(autouse=True)
def no_cluster() -> Iterator[None]:
    """None is up before the test, nor after."""
    if remnants():
        pytest.skip("a cluster is up, and this test would end it: `make cluster-down`, then run it again")
    yield
    _verb("down")


@pytest.mark.timeout(600)
def test_after_up_and_down_the_machine_is_as_it_was() -> None:
    before = footprint()
    _verb("up")
    during = left(before, footprint())
    assert any("links: left allranks-k8s" in line for line in during), during
    assert not [line for line in during if line.startswith(("mounts", "iptables", "sysctls", "folders"))], during
    _verb("down")
    wait("nothing to be left", lambda: not left(before, footprint()), 20)


@pytest.mark.timeout(1800)
def test_a_boot_killed_at_a_random_moment_does_not_keep_the_next_from_coming_up() -> None:
    before = footprint()
    began = time.monotonic()
    _verb("up")
    boot = time.monotonic() - began
    _verb("down")
    seed = random.randrange(1000)
    print(f"seed {seed}, one boot takes {boot:.1f} s")
    draw = random.Random(seed)
    for _ in range(10):
        _kill_after(draw.uniform(0, boot))
    _verb("up")
    assert len(Cluster.running().nodes) == 3
    _verb("down")
    wait("nothing to be left", lambda: not left(before, footprint()), 20)


def test_a_second_up_says_that_it_is_up_and_two_at_once_wait_for_each_other() -> None:
    both = [_start("up"), _start("up")]
    said = [one.communicate(timeout=280)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert sum("it is up already" in text for text in said) == 1, said
    assert any("waiting for `up` of process" in text for text in said), said


def _kill_after(seconds: float) -> None:
    up = _start("up")
    try:
        up.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.kill(up.pid, signal.SIGKILL)
        up.communicate(timeout=60)


def _verb(*words: str) -> None:
    done = _start(*words)
    said, _ = done.communicate(timeout=280)
    assert done.returncode == 0, said


def _start(*words: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "tests.cluster", *words]
    env = {**os.environ, "ALLRANKS_CLUSTER_HOME": str(HOME)}
    return subprocess.Popen(argv, cwd=CHECKOUT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
