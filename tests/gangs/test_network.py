"""What NCCL needs is decided on each node from its own files, and nothing of it reaches another node."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allranks.engines.local.control import ENGINE
from allranks.engines.local.rundir import runs_home
from allranks.node.launch import mpirun
from allranks.spec.job import Job
from tests.fabric import trees

pytestmark = [pytest.mark.gang]
WHY_NO_MPI = mpirun.why_not(os.environ["PATH"])
mpi = pytest.mark.skipif(bool(WHY_NO_MPI), reason=f"NOT TESTED, launcher mpirun: {WHY_NO_MPI}")
REPORT = "import json, os\nprint(json.dumps({n: v for n, v in os.environ.items() if n.startswith('NCCL_')}))\n"
INDEX = "NCCL_IB_GID_INDEX"


def variables_of_the_ranks(
    folder: Path, roots: list[Path], rdma: str = "auto", launcher: str = "native", **job: Any
) -> list[dict[str, str]]:
    """NCCL's variables in each of four ranks on two nodes, each of which reads its network below its own root."""
    (folder / "job.py").write_text(REPORT)
    spec = {"name": "n", "nodes": 2, "ranks_per_node": 2, "run": (sys.executable, "job.py"), "launcher": launcher}
    plan = ENGINE.plan(Job.model_validate({**spec, "failure": {"restarts": 0}, **job}), folder)
    document = {**plan.documents[0], "rdma": rdma, "fabric_roots": [str(root) for root in roots]}
    run = ENGINE.submit(replace(plan, documents=(document,)), detach=False)
    try:
        assert run.wait(120)
    finally:
        run.cancel(reason="the test is over", code=143)
    logs = runs_home() / "n/logs"
    assert run.status().phase == "succeeded", "\n".join(path.read_text() for path in logs.rglob("*.log"))
    found = [json.loads((logs / f"attempt-0/rank-{rank}.log").read_text().splitlines()[-1]) for rank in range(4)]
    return [{name: value for name, value in env.items() if not name.startswith("NCCL_DEBUG")} for env in found]


def two_pods(folder: Path, nccl: str) -> list[Path]:
    """Two pods whose only own IPv4 GIDs of RoCE v2 are at 5 and at 9."""
    for name, index, address in (("a", 5, "172.18.128.3"), ("b", 9, "172.18.128.4")):
        trees.odd_pod(folder / name, index, address).write("etc/allranks/nccl", nccl)
    return [folder / "a", folder / "b"]


@pytest.mark.parametrize("launcher", ["native", pytest.param("mpirun", marks=mpi)])
def test_with_nccl_2_18_each_pod_has_its_own_index(tmp_path: Path, launcher: str) -> None:
    found = variables_of_the_ranks(tmp_path, two_pods(tmp_path, "2.18.5"), launcher=launcher)
    assert [env.get(INDEX) for env in found] == ["5", "5", "9", "9"]


def test_what_one_pod_needs_does_not_leak_to_the_other(tmp_path: Path) -> None:
    first, second = two_pods(tmp_path, "2.18.5")
    (second / "etc/allranks/nccl").write_text("2.21.5")
    found = variables_of_the_ranks(tmp_path, [first, second], "required")
    assert [env.get(INDEX) for env in found] == ["5", "5", None, None]
    assert [env["NCCL_NET"] for env in found] == ["IB"] * 4


def test_with_nccl_2_21_or_newer_nothing_is_set(tmp_path: Path) -> None:
    found = variables_of_the_ranks(tmp_path, two_pods(tmp_path, "2.21.5"))
    assert found == [{"NCCL_SOCKET_IFNAME": "lo"}] * 4


def test_what_the_spec_sets_is_kept(tmp_path: Path) -> None:
    found = variables_of_the_ranks(tmp_path, two_pods(tmp_path, "2.18.5"), env={INDEX: "3"})
    assert [env[INDEX] for env in found] == ["3"] * 4


def test_required_without_a_usable_device_ends_the_run_before_any_rank_starts(tmp_path: Path) -> None:
    roots = [trees.roce_host(tmp_path / "a").root, trees.pod_without_network(tmp_path / "b").root]
    with pytest.raises(AssertionError):
        variables_of_the_ranks(tmp_path, roots, "required")
    status = ENGINE.status("n")
    assert (status.causes[-1].kind, status.causes[-1].node, status.exit_code) == ("transport", 1, 69)
    assert "network.rdma: it is required, but no RDMA device can be used here" in status.reason
    assert not status.attempts


def test_required_on_this_machine_holds_for_gangs_of_several_nodes(tmp_path: Path) -> None:
    """It has no RDMA; somebody who tries a spec here must not take its success for a proof."""
    job = Job.model_validate({"name": "n", "nodes": 2, "run": "true", "network": {"rdma": "required"}})
    run = ENGINE.submit(ENGINE.plan(job, tmp_path), detach=False)
    assert run.wait(60)
    status = run.status()
    assert (status.phase, status.causes[-1].kind) == ("failed", "transport"), status


def test_a_root_that_is_no_tree_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    roots = [tmp_path / "nowhere", tmp_path / "nowhere"]
    with pytest.raises(AssertionError, match=r"cannot tell what this node's network is: .*nowhere does not exist"):
        variables_of_the_ranks(tmp_path, roots)
