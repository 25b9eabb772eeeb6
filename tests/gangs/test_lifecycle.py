"""Whatever is killed, whenever it is cancelled: the gang comes back whole or is gone whole, and the record is true."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.gangs.gang import CLI, RunningGang, cli, eventually

pytestmark = pytest.mark.gang


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("rank", range(4))
def test_a_killed_rank_brings_the_whole_gang_back_and_is_named(tmp_path: Path, rank: int) -> None:
    with RunningGang(tmp_path, options=("--restarts", "3")) as g:
        g.stepping(0)
        old = [g.pid_of(r) for r in range(4)]
        g.kill(old[rank])
        g.stepping(1)
        status = g.status()
        assert not any(is_alive(pid) for pid in old)
        assert (status["phase"], status["attempt"], status["restarts"]) == ("running", 1, {"used": 1, "allowed": 3})
        (cause,) = status["causes"]
        assert (cause["kind"], cause["rank"], cause["node"]) == ("signal", rank, rank // 2)
        assert (cause["signal"], cause["exit"]) == ("SIGKILL", 137)


def test_no_two_attempts_ever_run_at_once(tmp_path: Path) -> None:
    with RunningGang(tmp_path, options=("--restarts", "9")) as g:
        for attempt in range(4):
            g.stepping(attempt)
            g.kill(g.pid_of(attempt))
        g.stepping(4)
        steps = [line.split() for line in g.steps_file.read_text().splitlines()]
        times = {a: [float(s[0]) for s in steps if int(s[1]) == a] for a in range(5)}
        for attempt in range(4):
            assert max(times[attempt]) < min(times[attempt + 1])


def test_a_spent_budget_ends_the_run_with_the_culprits_code(tmp_path: Path) -> None:
    script = "import os, sys, time\nif os.environ['RANK'] == '3': sys.exit(7)\ntime.sleep(60)\n"
    with RunningGang(tmp_path, script=script, options=("--restarts", "2"), detach=False) as g:
        assert g.process
        out, _ = g.process.communicate(timeout=30)
        assert g.process.returncode == 7
        status = g.status()
        assert (status["phase"], status["attempt"], status["restarts"]) == ("failed", 2, {"used": 2, "allowed": 2})
        assert [(c["attempt"], c["rank"], c["exit"]) for c in status["causes"]] == [(0, 3, 7), (1, 3, 7), (2, 3, 7)]
        assert "rank 3 on node 1: exited with code 7" in out


def test_an_uncaught_exception_is_told_with_its_last_lines(tmp_path: Path) -> None:
    script = (
        "import os, time\nif os.environ['RANK'] == '1':\n    print('about to fail')\n    {}['no']\ntime.sleep(60)\n"
    )
    with RunningGang(tmp_path, script=script, options=("--restarts", "0"), detach=False) as g:
        assert g.process
        out, _ = g.process.communicate(timeout=30)
        assert g.process.returncode == 1
        (cause,) = g.status()["causes"]
        assert (cause["kind"], cause["rank"], cause["message"]) == ("exception", 1, "rank 1 on node 0: KeyError: 'no'")
        assert cause["tail"][0] == "about to fail"
        assert cause["tail"][-1] == "KeyError: 'no'"
        assert Path(cause["log"]).read_text().startswith("about to fail\nTraceback")
        assert "KeyError: 'no'" in out


def test_a_missing_module_is_an_import_error(tmp_path: Path) -> None:
    with RunningGang(tmp_path, script="import not_there\n", options=("--restarts", "0"), detach=False) as g:
        assert g.process
        g.process.communicate(timeout=30)
        assert g.status()["causes"][0]["kind"] == "import"


@pytest.mark.parametrize("node", [0, 1])
def test_a_killed_agent_is_replaced_and_the_gang_comes_back(tmp_path: Path, node: int) -> None:
    """Node 0's agent is the coordinator."""
    with RunningGang(tmp_path, options=("--restarts", "3")) as g:
        g.stepping(0)
        old = [g.pid_of(r) for r in range(4)]
        g.kill(g.agent(node))
        g.stepping(1)
        assert not any(is_alive(pid) for pid in old)
        status = g.status()
        assert (status["attempt"], status["restarts"]["used"]) == (1, 1)
        (cause,) = status["causes"]
        assert (cause["attempt"], cause["kind"], cause["node"]) == (0, "node_lost", node)
        assert cause["message"] == f"node {node}: {'its agent' if node else 'the coordinator'} was killed by SIGKILL"


@pytest.mark.parametrize("node", [0, 1])
def test_an_agent_that_stays_stopped_is_replaced(tmp_path: Path, node: int) -> None:
    with RunningGang(tmp_path, options=("--restarts", "3")) as g:
        g.stepping(0)
        os.kill(g.agent(node), signal.SIGSTOP)
        g.stepping(1)
        (cause,) = g.status()["causes"]
        assert (cause["kind"], cause["node"]) == ("node_lost", node)


def test_the_budget_counts_agents_and_coordinators_too(tmp_path: Path) -> None:
    with RunningGang(tmp_path, options=("--restarts", "2")) as g:
        for attempt, node in enumerate([0, 1]):
            g.stepping(attempt)
            g.kill(g.agent(node))
        g.stepping(2)
        g.kill(g.agent(0))
        record = g.until("failed")
        assert record["restarts"] == {"used": 2, "allowed": 2}
        assert [c["kind"] for c in record["causes"]] == ["node_lost"] * 3


def test_a_gang_of_one_node_survives_its_coordinator(tmp_path: Path) -> None:
    with RunningGang(tmp_path, nodes=1, options=("--restarts", "1")) as g:
        g.stepping(0, ranks=2)
        g.kill(g.agent(0))
        g.stepping(1, ranks=2)
        assert g.status()["restarts"] == {"used": 1, "allowed": 1}


def test_a_killed_zygote_costs_one_restart(tmp_path: Path) -> None:
    with RunningGang(tmp_path, options=("--restarts", "3")) as g:
        g.stepping(0)
        g.kill(g.process_of("zygote"))
        g.stepping(1)
        assert g.status()["restarts"]["used"] == 1


def test_a_killed_supervisor_takes_everything_with_it_and_the_status_says_so(tmp_path: Path) -> None:
    with RunningGang(tmp_path) as g:
        g.stepping(0)
        pids = [g.pid_of(r) for r in range(4)] + [g.agent(0), g.agent(1), g.process_of("zygote")]
        supervisor = g.supervisor()
        g.kill(supervisor)
        eventually("all processes are gone", lambda: not any(is_alive(pid) for pid in pids), 5)
        status = g.status()
        assert (status["phase"], status["exit_code"]) == ("failed", 70)
        assert status["reason"] == f"its supervisor (pid {supervisor}) is gone"


def test_a_killed_command_line_takes_an_attached_run_with_it(tmp_path: Path) -> None:
    with RunningGang(tmp_path, detach=False) as g:
        g.stepping(0)
        pids = [g.pid_of(r) for r in range(4)] + [g.supervisor(), g.agent(0), g.agent(1)]
        assert g.process
        g.kill(g.process.pid)
        g.process.wait()
        eventually("all processes are gone", lambda: not any(is_alive(pid) for pid in pids), 5)
        status = g.status()
        assert (status["phase"], status["exit_code"]) == ("cancelled", 143)
        assert status["reason"] == "the command line that had started it went away"


def test_a_detached_run_outlives_its_terminal(tmp_path: Path) -> None:
    """The whole session of the terminal is hung up and killed."""
    g = RunningGang(tmp_path, script="import time\ntime.sleep(600)\n")
    command = " ".join([*CLI, "run", "--name", "g", "--detach", "--", sys.executable, "steps.py"])
    shell = subprocess.Popen(["sh", "-c", f"{command}; sleep 600"], cwd=tmp_path, start_new_session=True)
    g.until("running")
    try:
        os.killpg(shell.pid, signal.SIGHUP)
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
        time.sleep(0.5)
        assert g.status()["phase"] == "running"
    finally:
        assert cli("cancel", "g").returncode == 0


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_an_attached_command_line_cancels_the_run(tmp_path: Path, stop: signal.Signals) -> None:
    with RunningGang(tmp_path, detach=False) as g:
        g.stepping(0)
        assert g.process
        g.process.send_signal(stop)
        g.process.communicate(timeout=20)
        assert g.process.returncode == (130 if stop == signal.SIGINT else 143)
        assert g.status()["phase"] == "cancelled"


WAITS = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up')\ntime.sleep(600)\n"


def test_cancel_during_the_roll_call(tmp_path: Path) -> None:
    """An agent that is stopped keeps the gang incomplete."""
    with RunningGang(tmp_path) as g:
        g.until("running")
        other = g.agent(1)
        os.kill(other, signal.SIGSTOP)
        g.until("restarting")
        assert cli("cancel", "g").returncode == 0
        assert g.status()["phase"] == "cancelled"


def test_cancel_while_starting(tmp_path: Path) -> None:
    with RunningGang(tmp_path) as g:
        assert cli("cancel", "g").returncode == 0
        assert g.status()["phase"] == "cancelled"
        assert cli("cancel", "g").returncode == 0, "cancelling twice is no error"


def test_cancel_while_running_gives_ranks_their_grace_and_not_more(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        f"kind: Job\nname: g\nnodes: 2\nranks_per_node: 2\nrun: {sys.executable} steps.py\nfailure: {{grace: 1s}}\n"
    )
    g = RunningGang(tmp_path, script=WAITS)
    assert cli("run", "--detach", str(tmp_path / "job.yaml")).returncode == 0
    eventually("all ranks are up", lambda: len(list(g.run_directory.glob("logs/attempt-0/rank-*.log"))) == 4)
    eventually("all print", lambda: all(p.read_text() for p in g.run_directory.glob("logs/attempt-0/rank-*.log")))
    began = time.monotonic()
    assert cli("cancel", "g").returncode == 0
    assert 1.0 < time.monotonic() - began < 4.0
    assert g.status()["phase"] == "cancelled"


def test_cancel_during_a_restart(tmp_path: Path) -> None:
    script = "import os, sys, time\nif os.environ['RANK'] == '0': sys.exit(3)\ntime.sleep(600)\n"
    with RunningGang(tmp_path, script=script, options=("--restarts", "50")) as g:
        g.until("restarting")
        assert cli("cancel", "g").returncode == 0
        assert g.status()["phase"] == "cancelled"


def test_ranks_that_leave_grandchildren_leave_nothing(tmp_path: Path) -> None:
    """A rank with a child, a child in its own session, and a daemon of two forks; the rank is killed with -9."""
    script = f"""
import os, subprocess, sys, time
kids = [subprocess.Popen(["sleep", "600"]), subprocess.Popen(["sleep", "600"], start_new_session=True)]
if os.fork() == 0:
    os.setsid()
    pid = os.fork()
    if pid: os._exit(0)
    with open({str(tmp_path)!r} + "/pids", "a") as f: f.write(f"{{os.getpid()}}\\n")
    time.sleep(600)
with open({str(tmp_path)!r} + "/pids", "a") as f:
    for k in kids: f.write(f"{{k.pid}}\\n")
time.sleep(600)
"""
    with RunningGang(tmp_path, script=script, options=("--restarts", "0")) as g:
        pids = tmp_path / "pids"
        eventually("12 descendants", lambda: pids.exists() and len(pids.read_text().split()) == 12)
        g.until("running")
        descendants = [int(pid) for pid in pids.read_text().split()]
        g.kill(g.pid_of(2))
        g.until("failed")
        eventually("all are gone", lambda: not any(is_alive(pid) for pid in descendants), 3)


def test_two_runs_with_one_name_are_refused_with_the_way_out(tmp_path: Path) -> None:
    with RunningGang(tmp_path) as g:
        g.stepping(0)
        again = cli("run", "--name", "g", "--detach", "--", sys.executable, "steps.py", cwd=tmp_path)
        assert again.returncode == 69
        assert "allranks cancel g" in again.stderr
        assert "--name" in again.stderr
        assert g.status()["phase"] == "running"


def test_two_gangs_run_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with RunningGang(tmp_path / "a", name="a") as a, RunningGang(tmp_path / "b", name="b") as b:
        a.stepping(0)
        b.stepping(0)
        a.kill(a.pid_of(1))
        a.stepping(1)
        assert b.status()["attempt"] == 0


def test_a_stranger_on_the_agents_port_disturbs_nothing(tmp_path: Path) -> None:
    with RunningGang(tmp_path) as g:
        g.stepping(0)
        port = int(re.findall(r'"port": (\d+)', (g.run_directory / "plan.json").read_text())[0])
        for garbage in (b"\0" * 1000, b"GET / HTTP/1.1\r\n\r\n", b"{}\n" * 100, b"A" * 1_000_000):
            with socket.create_connection(("127.1.0.1", port)) as stranger:
                try:
                    stranger.sendall(garbage)
                except OSError:
                    pass
        assert g.status()["phase"] == "running"
        assert g.status()["attempt"] == 0


def test_the_port_and_the_lock_are_free_afterwards(tmp_path: Path) -> None:
    with RunningGang(tmp_path) as g:
        g.stepping(0)
        port = int(re.findall(r'"port": (\d+)', (g.run_directory / "plan.json").read_text())[0])
        assert cli("cancel", "g").returncode == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.1.0.1", port))


def test_an_environment_that_names_a_rank_is_told_and_overridden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "77")
    monkeypatch.setenv("MASTER_ADDR", "elsewhere")
    script = "import os\nprint(os.environ['RANK'], os.environ['MASTER_ADDR'])\n"
    with RunningGang(tmp_path, script=script, detach=False) as g:
        assert g.process
        out, _ = g.process.communicate(timeout=30)
        assert g.process.returncode == 0
        assert "RANK" in out
        assert "MASTER_ADDR" in out
        assert sorted(p.read_text() for p in g.run_directory.glob("logs/attempt-0/*.log")) == [
            f"{rank} 127.1.0.1\n" for rank in range(4)
        ]


def test_the_deadline_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        f"kind: Job\nname: g\nnodes: 1\nrun: {sys.executable} steps.py\nfailure: {{deadline: 2s}}\n"
    )
    (tmp_path / "steps.py").write_text("import time\ntime.sleep(60)\n")
    done = cli("run", str(tmp_path / "job.yaml"))
    assert done.returncode == 124
    assert "the deadline of 2 s has passed" in done.stdout + done.stderr


def test_a_program_that_exits_at_once_is_a_success(tmp_path: Path) -> None:
    done = cli("run", "--name", "g", "--nodes", "2", "--ranks", "4", "--", "true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", [0.03, 0.15, 0.35, 0.55])
def test_a_start_that_is_interrupted_leaves_no_run_or_a_cancelled_one(
    tmp_path: Path, stop: signal.Signals, moment: float
) -> None:
    with RunningGang(tmp_path, detach=False) as g:
        assert g.process
        time.sleep(moment)
        g.process.send_signal(stop)
        out, _ = g.process.communicate(timeout=30)
        assert "allranks/cli" not in out, "a traceback, and not of an interpreter that was still starting"
        eventually("the run is gone", lambda: not g.run_directory.exists() or g.status()["phase"] == "cancelled")
