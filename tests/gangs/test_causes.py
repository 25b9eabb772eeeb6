"""Who is named when one rank takes the others down with it: real gangs, real words of survivors."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from allranks.node import processes
from allranks.node.termination import LARGEST
from tests.gangs.gang import RunningGang, eventually

pytestmark = pytest.mark.gang

# What goes wrong is another thing in each attempt; the last one ends well.
BREAKS = """
import os, signal, subprocess, sys, time
import torch, torch.distributed as dist
rank, attempt = int(os.environ["RANK"]), int(os.environ["ALLRANKS_ATTEMPT"])
if attempt == 3 and rank == 0:
    listen = "import socket, sys, time; s = socket.create_server(('', int(sys.argv[1]))); print(); time.sleep(60)"
    taken = [sys.executable, "-uc", listen, os.environ["MASTER_PORT"]]
    subprocess.Popen(taken, stdout=subprocess.PIPE).stdout.readline()
dist.init_process_group("gloo")
for step in range(200 if attempt < 4 else 3):
    dist.all_reduce(torch.ones(100))
    time.sleep(0.02)
    if step == 5 and (attempt, rank) in ((0, 1), (1, 0)):
        sys.exit(0)
    if step == 5 and (attempt, rank) == (2, 2):
        os.kill(os.getpid(), signal.SIGTERM)
dist.destroy_process_group()
"""


@pytest.mark.torch
def test_survivors_are_never_taken_for_the_culprit(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BREAKS)
    with RunningGang(tmp_path, sys.executable, "train.py", options=("--restarts", "5")) as g:
        record = g.until("succeeded", seconds=120)
    left, host_left, ended, taken = record["causes"]
    for cause, rank in ((left, 1), (host_left, 0)):
        assert (cause["kind"], cause["rank"], cause["exit"]) == ("exit", rank, 1), cause
        told = f"rank {rank} on node 0 had ended with 0 while the others still worked; then rank "
        assert cause["message"].startswith(told)
        assert cause["secondary"]
    assert (ended["kind"], ended["rank"], ended["signal"], ended["exit"]) == ("signal", 2, "SIGTERM", 143), ended
    assert ended["message"] == "rank 2 on node 1: killed by SIGTERM, which allranks had not sent"
    assert (taken["kind"], taken["rank"]) == ("exception", 0), taken
    assert re.search(r"EADDRINUSE.* \(port (\d+) is held by process \d+: .* -uc .* \1\)$", taken["message"]), taken


def test_a_rank_that_goes_into_the_background_is_told(tmp_path: Path) -> None:
    script = "import os, time\nif os.fork(): time.sleep(0.3); os._exit(0)\nos.setsid()\ntime.sleep(60)\n"
    command = (sys.executable, "-S", "steps.py")  # exec'd, so that the daemon has its rank's environment
    with RunningGang(tmp_path, *command, script=script, nodes=1) as g:
        record = g.until("succeeded")
    assert len(record["notes"]) == 2
    assert re.search(
        r"rank \d ended with 0 after .* s and left process \d+ running, which is ended", record["notes"][0]
    )


@pytest.mark.parametrize("lost", ["a rank", "a node", "the coordinator", "two in turn"])
def test_every_node_leaves_the_same_record(tmp_path: Path, lost: str) -> None:
    """Nodes that pretend to be pods leave it where Kubernetes would look for it."""
    restarts = 1 if lost == "two in turn" else 0
    options = ("--as", "trainjob", "--restarts", str(restarts))
    with RunningGang(tmp_path, nodes=3, ranks=1, options=options) as g:
        g.stepping(0, ranks=3, seconds=30)
        supervisor = g.supervisor()
        if restarts:
            g.kill(g.pid_of(1))
            g.stepping(1, ranks=3, seconds=30)
        victim = g.pid_of(2) if lost == "a rank" else g.agent(1 if lost == "a node" else 0)
        late = g.agent(2) if lost == "the coordinator" else 0  # finds the next coordinator after that knows the end
        if late:
            os.kill(late, signal.SIGSTOP)
        g.kill(victim)
        if late:
            time.sleep(1.5)
            os.kill(late, signal.SIGCONT)
        record = g.until("failed", seconds=30)
        eventually("all is over", lambda: not any(p.is_alive for p in processes.descendants(supervisor)))
        files = sorted(g.run_directory.glob("pods/*/dev/termination-log"))
    left = [file.read_text() for file in files]
    assert len(left) == 3
    assert len(set(left)) == 1, left
    assert len(left[0]) <= LARGEST
    found = json.loads(left[0])
    assert found["causes"] == record["causes"]
    assert [found[name] for name in ("name", "phase", "reason")] == [
        record[name] for name in ("name", "phase", "reason")
    ]
    assert [(c["kind"], c["node"]) for c in found["causes"]][-1] == {
        "a rank": ("signal", 2), "a node": ("node_lost", 1), "the coordinator": ("node_lost", 0),
        "two in turn": ("node_lost", 0),
    }[lost]  # fmt: skip
    assert len(found["causes"]) == restarts + 1
