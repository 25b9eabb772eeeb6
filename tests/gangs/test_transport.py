"""The way that NCCL took is in the run's record, and TCP where RDMA is required ends the run.

There is no GPU here: the ranks print what NCCL prints (lines of 2.28.9), to where NCCL would.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from allranks.engines.local.control import ENGINE, LocalRun
from allranks.node.status import Status
from allranks.spec.job import Job
from tests.fabric import trees

pytestmark = pytest.mark.gang

SAYS = '''
"""Says what NCCL would say of a ring of two nodes, VIA and its network being arguments; then trains on."""
import os, sys, time
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
file = os.environ.get("NCCL_DEBUG_FILE", "").replace("%p", str(os.getpid()))
out = open(file, "w") if file else sys.stdout
def say(text):
    print(f"vm:{os.getpid()}:{os.getpid()} [0] NCCL INFO {text}", file=out, flush=True)
say(f"Using network {sys.argv[1]}")
say(f"ncclCommInitRankConfig comm 0x7f rank {rank} nranks {ranks} cudaDev 0 nvmlDev 0 - Init START")
other = (rank + 1) % ranks
say(f"Channel 00/0 : {rank}[0] -> {other}[0] [send] via {sys.argv[2]}")
time.sleep(float(sys.argv[3]))
'''


def start(
    folder: Path, *words: str, rdma: str = "auto", seconds: float = 4, env: dict[str, str] | None = None
) -> LocalRun:
    """Two nodes of one rank with usable RoCE, so that RDMA could be had."""
    (folder / "says.py").write_text(SAYS)
    roots = [trees.roce_host(folder / name).root for name in ("a", "b")]
    spec = {"name": "t", "nodes": 2, "run": (sys.executable, "says.py", *words, str(seconds)), "env": env or {}}
    plan = ENGINE.plan(Job.model_validate({**spec, "failure": {"start_timeout": "60s"}}), folder)
    document = {**plan.documents[0], "rdma": rdma, "fabric_roots": [str(root) for root in roots]}
    return ENGINE.submit(replace(plan, documents=(document,)), detach=False)


def ended(run: LocalRun) -> Status:
    try:
        assert run.wait(120)
    finally:
        run.cancel(reason="the test is over", code=143)
    return run.status()


def test_the_record_says_how_each_pair_of_nodes_is_connected(tmp_path: Path) -> None:
    status = ended(start(tmp_path, "IB", "NET/IB/0/GDRDMA"))
    assert (status.phase, status.transport) == ("succeeded", "nccl/IB with GPUDirect")
    assert status.links == [{"nodes": [0, 1], "network": "IB", "gpudirect": True}]
    assert [one["node"] for one in status.traffic] == [0, 1]


def test_tcp_where_rdma_is_required_ends_the_run_and_says_so(tmp_path: Path) -> None:
    status = ended(start(tmp_path, "Socket", "NET/Socket/0", rdma="required", seconds=600))
    assert (status.phase, status.exit_code, status.restarts["used"]) == ("failed", 69, 0)
    assert status.causes[-1].kind == "transport"
    assert "network.rdma is required, but NCCL" in status.reason
    assert status.transport == "nccl/Socket"


def test_tcp_is_fine_where_rdma_is_not_required(tmp_path: Path) -> None:
    status = ended(start(tmp_path, "Socket", "NET/Socket/0"))
    assert (status.phase, status.transport) == ("succeeded", "nccl/Socket")


def test_a_users_own_nccl_debug_is_kept_and_read_from_the_ranks_logs(tmp_path: Path) -> None:
    run = start(tmp_path, "Socket", "NET/Socket/0", env={"NCCL_DEBUG": "INFO"})
    status = ended(run)
    assert status.transport == "nccl/Socket"
    logs = Path(ENGINE.kept("t").folder) / "logs/attempt-0"
    assert "Using network Socket" in (logs / "rank-0.log").read_text()
