"""Whoever starts the ranks, they learn the same of themselves, and their true end is told."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from allranks import engines
from allranks.node.environment import IDENTITY, SOMEBODY_ELSES, rank_environment
from allranks.node.launch import mpirun
from tests.gangs.gang import RunningGang
from tests.node.gangs import make_gang

pytestmark = [pytest.mark.gang]
torch = pytest.mark.torch
WHY_NO_MPI = mpirun.why_not(os.environ["PATH"])
mpi = pytest.mark.skipif(bool(WHY_NO_MPI), reason=f"NOT TESTED, launcher mpirun: {WHY_NO_MPI}")
MARKS = {"torchrun": torch, "deepspeed": torch, "mpirun": mpi}
ITS_OWN = {"torchrun": r"(ROLE|GROUP)_\w+|TORCHELASTIC_\w+", "mpirun": r"(OMPI|PMIX)_\w+"}
"""What a launcher adds by itself, beside the rank environment."""
NAMES = (*IDENTITY, "GREETING")
GREETING = " good  morning '\"`$HOME ${PATH} $(id) a=b;c,d\\n\\\n\u00e9\u65e5\U0001f600 "
"""What a shell, mpirun's -x or a file of NAME=VALUE lines would spoil."""

REPORT = "import json, os\nprint(json.dumps(dict(os.environ)))\n"


def environments(folder: Path, launcher: str, pretended: str = "", ranks: int = 2) -> list[dict[str, str]]:
    """What each rank of 2 nodes finds in its environment, by rank."""
    options = ["--launcher", launcher, "--restarts", "0", "--env", f"GREETING={GREETING}"]
    options += ["--as", pretended] if pretended else []
    with RunningGang(folder, script=REPORT, ranks=ranks, options=tuple(options), detach=False) as g:
        assert g.process
        out, _ = g.process.communicate(timeout=120)
        assert g.process.returncode == 0, out + g.agent_logs()
        assert "your environment already says" not in out
        logs = [g.run_directory / f"logs/attempt-0/rank-{rank}.log" for rank in range(2 * ranks)]
        return [json.loads(log.read_text().splitlines()[-1]) for log in logs]


@pytest.mark.parametrize(
    ("launcher", "pretended"),
    [
        pytest.param(launcher, engine, marks=MARKS.get(launcher, ()))
        for engine in ("", *engines.pretended())
        for launcher in (engines.pretend(engine).LAUNCHERS if engine else ("native", "torchrun", "deepspeed", "mpirun"))
        if launcher != "once"
    ],
)
def test_the_rank_environment_is_the_same_under_every_launcher_and_engine(
    tmp_path: Path, launcher: str, pretended: str
) -> None:
    found = environments(tmp_path, launcher, pretended)
    gang = make_gang(restarts=0)
    for rank, env in enumerate(found):
        expected = {
            **rank_environment(gang, rank, 0, "127.1.0.1", int(found[0]["MASTER_PORT"])),
            "GREETING": GREETING,
        }
        assert {name: env.get(name) for name in NAMES} == {name: expected[name] for name in NAMES}
        strangers = {name for name in env if SOMEBODY_ELSES.fullmatch(name)} - set(IDENTITY)
        assert [name for name in strangers if not re.fullmatch(ITS_OWN.get(launcher, ""), name)] == []


def test_a_rank_sees_what_else_the_engine_gives_its_pod(tmp_path: Path) -> None:
    first, *_, last = environments(tmp_path, "native", "mpijob")
    assert (first["HOSTNAME"], first["K_MPI_JOB_ROLE"]) == ("g-launcher", "launcher")
    assert (last["HOSTNAME"], last["K_MPI_JOB_ROLE"]) == ("g-worker-0", "worker")
    hostfile = Path(first["OMPI_MCA_orte_default_hostfile"]).read_text()
    assert hostfile == "g-launcher.g.default.svc slots=2\ng-worker-0.g.default.svc slots=2\n"


ALL_REDUCE = '''
"""Every rank's number added up by MPI itself, and what mpirun's way in would leave in the environment."""
import ctypes, os
mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
world, number, add = (
    ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, "ompi_" + name)))
    for name in ("mpi_comm_world", "mpi_int", "mpi_op_sum")
)
mpi.MPI_Init(None, None)
mine, rank, total = ctypes.c_int(int(os.environ["RANK"])), ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
mpi.MPI_Allreduce(ctypes.byref(mine), ctypes.byref(total), 1, number, add, world)
mpi.MPI_Finalize()
print(rank.value == mine.value, total.value, os.environ.get("SSH_CONNECTION"), os.environ["PATH"])
'''


@mpi
def test_ranks_of_mpirun_talk_mpi_and_keep_their_nodes_environment(tmp_path: Path) -> None:
    options = ("--launcher", "mpirun", "--restarts", "0")
    with RunningGang(tmp_path, sys.executable, "steps.py", script=ALL_REDUCE, options=options, detach=False) as g:
        assert g.process
        out, _ = g.process.communicate(timeout=120)
        assert g.process.returncode == 0, out + g.agent_logs()
        logs = [(g.run_directory / f"logs/attempt-0/rank-{rank}.log").read_text() for rank in range(4)]
        assert logs == [f"True 6 None {os.environ['PATH']}\n"] * 4
        assert list((g.run_directory / "ssh").glob("tmp-*")) == []


@pytest.mark.parametrize("pretended", ["", *engines.pretended()])
def test_once_starts_one_process_a_node(tmp_path: Path, pretended: str) -> None:
    found = environments(tmp_path, "once", pretended, ranks=1)
    assert [(env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"]) for env in found] == [("0", "2", "0"), ("1", "2", "0")]


@pytest.mark.parametrize(
    "launcher",
    [pytest.param(name, marks=mark) for name, mark in (("torchrun", torch), ("deepspeed", torch), ("mpirun", mpi))],
)
def test_a_killed_rank_of_a_foreign_launcher_is_named_and_the_gang_comes_back(tmp_path: Path, launcher: str) -> None:
    """The launcher itself would only say that it failed."""
    options = ("--launcher", launcher, "--restarts", "1")
    with RunningGang(tmp_path, options=options) as g:
        g.stepping(0, seconds=60)
        g.kill(g.pid_of(3))
        g.stepping(1, seconds=60)
        (cause,) = g.status()["causes"]
        assert (cause["rank"], cause["node"], cause["signal"]) == (3, 1, "SIGKILL")


@torch
def test_a_foreign_launcher_that_cannot_start_ranks_is_told(tmp_path: Path) -> None:
    options = ("--launcher", "torchrun", "--restarts", "0")
    with RunningGang(tmp_path, sys.executable, "steps.py", script="raise SystemExit(9)\n", nodes=1, options=options,
                     detach=False) as g:  # fmt: skip
        assert g.process
        out, _ = g.process.communicate(timeout=60)
        assert g.process.returncode == 9, out
