"""The init of an engine with containers: one node, told by its environment which, and its exit code is the agent's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from allranks.engines.local.control import SUPERVISOR
from allranks.node.gang import Gang
from allranks.node.listen import SEEN_ENDED, free_port
from tests.node.gangs import make_gang

PLACE = {"PET_NNODES": "1", "PET_NODE_RANK": "0", "RANK": "0", "MASTER_ADDR": "127.0.0.1"}


def run_init(folder: Path, place: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    """One node with two ranks, as a PyTorchJob's pod would start it."""
    gang = make_gang(
        engine="pytorchjob", nodes=1, argv=argv, state=str(folder), cache=str(folder), workdir=str(folder),
        port=free_port(),
    )  # fmt: skip
    (folder / "logs").mkdir()
    if not (folder / "secret").exists():
        (folder / "secret").write_text("ab" * 32)
    (folder / "plan.json").write_text(json.dumps(vars(gang)))
    return subprocess.run(
        [sys.executable, SUPERVISOR, "init", folder / "plan.json"],
        env={**os.environ, **place}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.gang
@pytest.mark.parametrize(("command", "code", "phase"), [("exit 0", 0, "succeeded"), ("exit 7", 42, "failed")])
def test_it_exits_as_the_engine_should_take_the_end_of_the_run(
    tmp_path: Path, command: str, code: int, phase: str
) -> None:
    done = run_init(tmp_path, PLACE, "sh", "-c", command)
    assert done.returncode == code, done.stderr
    assert json.loads((tmp_path / "status.json").read_text())["phase"] == phase


@pytest.mark.gang
def test_an_agent_that_breaks_is_not_told_as_a_cancelled_run(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    done = run_init(tmp_path, PLACE, "true")
    assert done.returncode == 1
    record = json.loads((tmp_path / "status.json").read_text())
    assert (record["phase"], record["exit_code"]) == ("failed", 70)
    assert "see logs/agent-" in record["reason"]


def test_an_environment_that_does_not_say_which_node_it_is_is_told(tmp_path: Path) -> None:
    done = run_init(tmp_path, {}, "true")
    assert done.returncode == 42
    assert "cannot tell which node this is: PET_NNODES is not set (read as engine pytorchjob)" in done.stdout


def run_container(
    folder: Path, place: dict[str, str], *argv: str, **changes: object
) -> subprocess.CompletedProcess[str]:
    """One node as its pod would start it: a plan and a secret that are mounted, and a state that is not there yet."""
    state, mounted = folder / "run" / "state", folder / "mounted"
    gang = make_gang(
        engine="pytorchjob", ranks_per_node=1, argv=argv, state=str(state), cache=str(folder / "run" / "cache"),
        restarts=0, termination=str(folder / "termination-log"),
        **{"nodes": 1, "workdir": "", "port": free_port(), **changes},
    )  # fmt: skip
    mounted.mkdir(exist_ok=True)
    (mounted / "secret").write_text("ab" * 32)
    (mounted / "plan.json").write_text(json.dumps(vars(gang)))
    (folder / "termination-log").write_text("")  # kubelet makes a fresh one for each container
    return subprocess.run(
        [sys.executable, SUPERVISOR, "init", mounted / "plan.json"],
        env={**os.environ, "TMPDIR": str(folder / "run" / "tmp"), **place}, cwd=folder,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.gang
def test_a_container_lays_out_its_run_and_starts_where_its_image_says(tmp_path: Path) -> None:
    done = run_container(tmp_path, PLACE, "sh", "-c", "pwd && touch $TMPDIR/x")
    assert done.returncode == 0, done.stderr + done.stdout
    state = tmp_path / "run" / "state"
    assert (state / "logs" / "attempt-0" / "rank-0.log").read_text() == f"{tmp_path}\n"
    assert json.loads((tmp_path / "termination-log").read_text())["phase"] == "succeeded"
    assert (state / "secret").stat().st_mode & 0o777 == 0o600


@pytest.mark.gang
def test_an_interpreter_that_cannot_start_is_told_by_its_rank(tmp_path: Path) -> None:
    done = run_container(tmp_path, PLACE, sys.executable, "-c", "print(1)", env={"PYTHONHOME": "/nonexistent"})
    assert done.returncode == 42, done.stderr
    reason = json.loads((tmp_path / "termination-log").read_text())["reason"]
    assert "exited with code 1; Fatal Python error: init_fs_encoding" in reason


@pytest.mark.gang
@pytest.mark.parametrize(("closes", "codes"), [(True, (42, 0)), (False, (42, 42))])
def test_where_one_pods_end_is_the_jobs_node_0_ends_last_and_alone_tells_how(
    tmp_path: Path, closes: bool, codes: tuple[int, int]
) -> None:
    port, ended = free_port(), {}

    def node(number: int) -> int:
        place = {**PLACE, "PET_NNODES": "2", "PET_NODE_RANK": str(number), "RANK": str(number)}
        folder = tmp_path / str(number)
        folder.mkdir()
        done = run_container(folder, place, "sh", "-c", "exit $RANK", nodes=2, port=port, closes=closes)
        ended[number] = time.monotonic()
        assert json.loads((folder / "termination-log").read_text())["causes"][0]["node"] == 1
        return done.returncode

    with ThreadPoolExecutor() as pool:
        assert tuple(pool.map(node, range(2))) == codes
    assert (ended[0] - ended[1] > 0.8 * SEEN_ENDED) is closes


@pytest.mark.gang
def test_a_container_that_gave_up_does_so_at_once_when_it_is_started_again(tmp_path: Path) -> None:
    first = run_container(tmp_path, PLACE, "sh", "-c", "echo ran >> ran; exit 7")
    words = (tmp_path / "termination-log").read_text()
    again = run_container(tmp_path, PLACE, "sh", "-c", "echo ran >> ran; exit 7")
    assert (first.returncode, again.returncode) == (42, 42)
    assert (tmp_path / "ran").read_text() == "ran\n"
    assert json.loads(words)["causes"][0]["exit"] == 7
    assert (tmp_path / "termination-log").read_text() == words


@pytest.mark.gang
def test_pods_that_the_engine_made_anew_go_on_counting(tmp_path: Path) -> None:
    done = run_container(tmp_path, {**PLACE, "ALLRANKS_RESTART": "2"}, "sh", "-c", "exit $ALLRANKS_ATTEMPT")
    assert done.returncode == 42
    record = json.loads((tmp_path / "run" / "state" / "status.json").read_text())
    message = "pytorchjob has made all pods anew for the 2nd time: one was lost; which one is not known"
    assert record["causes"][0]["message"].startswith(message)
    assert record["causes"][0]["node"] is None
    assert (record["restarts"], record["causes"][0]["attempt"]) == ({"used": 1, "allowed": 0}, 1999)


@pytest.mark.gang
def test_a_container_says_why_it_could_not_even_start(tmp_path: Path) -> None:
    done = run_container(tmp_path, {}, "true")
    assert done.returncode == 42
    left = json.loads((tmp_path / "termination-log").read_text())
    assert "cannot tell which node this is: PET_NNODES is not set" in left["reason"]
    elsewhere = run_container(tmp_path, PLACE, "true", workdir="/nowhere")
    assert elsewhere.returncode == 73
    left = json.loads((tmp_path / "termination-log").read_text())
    assert left["causes"][0]["message"] == "cannot start: workdir /nowhere is not in the image or on a volume"


def on_this_machine(folder: Path, *argv: str) -> Gang:
    """One rank, and the folder of a run for it."""
    (folder / "logs").mkdir()
    (folder / "secret").write_text("ab" * 32)
    places = {"state": str(folder), "cache": str(folder), "workdir": str(folder)}
    return make_gang(nodes=1, ranks_per_node=1, argv=argv, grace=300.0, **places)


ENDED_EARLY = """
import os, sys
from allranks.node import init

start = init.Init._start_zygote
init.Init._start_zygote = lambda self: (start(self), os.kill(os.getpid(), int(sys.argv[2])))
sys.exit(init.main(sys.argv[1:2]))
"""


@pytest.mark.gang
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_is_told_to_end_before_there_are_agents_ends_them_at_once(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(vars(on_this_machine(tmp_path, "sleep", "600"))))
    done = subprocess.run(
        [sys.executable, "-c", ENDED_EARLY, str(tmp_path / "plan.json"), str(int(number))],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "status.json").read_text())["phase"] == "cancelled"


@pytest.mark.gang
def test_a_machine_without_its_loopback_is_told_so(tmp_path: Path) -> None:
    apart = ["unshare", "--map-root-user", "--net"]
    if not shutil.which("unshare") or subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("no network of its own can be made here")
    (tmp_path / "plan.json").write_text(json.dumps(vars(on_this_machine(tmp_path, "true"))))
    command = [*apart, sys.executable, str(SUPERVISOR), "init", str(tmp_path / "plan.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 73
    assert "cannot be reached: Network is unreachable; bring its loopback up: ip link set lo up" in done.stdout


KILLED_WHILE_IT_IMPORTS = """
import sys
from allranks.node import init

dies = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
init.interpreter.command_line = lambda gang, env: (dies, {})
sys.exit(init.main(sys.argv[1:]))
"""


@pytest.mark.gang
def test_a_zygote_that_memory_does_not_suffice_for_is_not_started_for_ever(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(vars(on_this_machine(tmp_path, "true"))))
    done = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_IT_IMPORTS, tmp_path / "plan.json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.count("the zygote ended with -9") == 3, done.stdout + done.stderr
    assert json.loads((tmp_path / "status.json").read_text())["phase"] == "succeeded"


@pytest.mark.gang
def test_a_container_that_must_end_does_so_as_soon_as_its_ranks_have(tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    gang = make_gang(
        engine="pytorchjob", nodes=1, ranks_per_node=1, argv=("sh", "-c", "echo on; exec sleep 600"), port=free_port(),
        state=str(tmp_path / "state"), cache=str(tmp_path / "cache"), workdir="", grace=300.0, restarts=3,
    )  # fmt: skip
    (mounted / "secret").write_text("ab" * 32)
    (mounted / "plan.json").write_text(json.dumps(vars(gang)))
    with subprocess.Popen(
        [sys.executable, SUPERVISOR, "init", mounted / "plan.json"], env={**os.environ, **PLACE}, cwd=tmp_path,
        stdout=subprocess.PIPE, text=True,
    ) as init:  # fmt: skip
        assert init.stdout is not None
        try:
            assert init.stdout.readline() == "0 rank 0 | on\n"
            init.terminate()
            assert init.wait(30) == 143
        finally:
            init.kill()
