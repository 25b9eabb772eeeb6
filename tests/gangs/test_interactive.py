"""A gang that stays: idle, given commands, left and found again, broken and whole again, ended without a trace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks.node.ask import main as ask_main
from tests.gangs.gang import CLI, RunningGang, cli, eventually

pytestmark = pytest.mark.gang

SHOW = """
import os, sys, time
print("I am", os.environ["RANK"], *sys.argv[1:], flush=True)
if "fail" in sys.argv and os.environ["RANK"] == "2": sys.exit(7)
if "wait" in sys.argv: time.sleep(100)
"""
IDENTITY = """
import os, json
names = ("RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE LOCAL_SIZE NODE_RANK GROUP_RANK MASTER_ADDR ALLRANKS_NODE "
    "ALLRANKS_NODES OMP_NUM_THREADS TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS PYTHONUNBUFFERED").split()
print(json.dumps({name: os.environ.get(name) for name in names}), "port", os.environ["MASTER_PORT"])
"""
PYTHON = sys.executable


class IdleGang(RunningGang):
    """A gang called ``g``, up in ``folder`` with the script ``show.py`` beside it."""

    def __init__(self, folder: Path, *options: str, name: str = "g") -> None:
        super().__init__(folder, name=name)
        (folder / "show.py").write_text(SHOW)
        self._argv = ["up", "--name", name, "--nodes", "2", "--ranks", "2", *options]

    def __enter__(self) -> IdleGang:
        super().__enter__()
        return self

    def exec(self, *argv: str) -> subprocess.CompletedProcess[str]:
        options = argv[: argv.index("--")] if "--" in argv else ()
        return cli("exec", self.name, *options, "--", *argv[len(options) + bool(options) :], cwd=self.folder)

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """Exec, followed by a process of its own."""
        return subprocess.Popen(
            [*CLI, "exec", self.name, "--", *argv], cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip


@pytest.fixture
def g(tmp_path: Path) -> Iterator[IdleGang]:
    with IdleGang(tmp_path) as gang:
        yield gang


def test_commands_run_one_after_another_and_the_gang_is_idle_in_between(g: IdleGang) -> None:
    assert g.status()["phase"] == "idle"
    assert cli("list").stdout.splitlines()[1].split()[1:3] == ["local", "idle"]
    done = g.exec(PYTHON, "show.py", "once")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, [f"rank {r} | I am {r} once" for r in range(4)])
    failed = g.exec(PYTHON, "show.py", "fail")
    assert failed.returncode == 7
    assert "rank 2 on node 1: exited with code 7" in failed.stderr
    status = g.status()
    assert (status["phase"], status["attempt"], status["restarts"]) == ("idle", 1, {"used": 0, "allowed": 0})
    assert [(c["attempt"], c["rank"], c["exit"]) for c in status["causes"]] == [(1, 2, 7)]
    assert [(c["phase"], c["exit_code"], c["attempts"]) for c in status["commands"]] == [
        ("succeeded", 0, 1), ("failed", 7, 1),
    ]  # fmt: skip
    assert g.exec("sh", "-c", "kill -9 $$").returncode == 137
    assert g.exec(PYTHON, "show.py").returncode == 0
    assert "I am 3" in cli("logs", "g").stdout


def test_a_rank_of_exec_is_who_it_would_be_under_run(g: IdleGang) -> None:
    (g.folder / "identity.py").write_text(IDENTITY)
    told = [sorted(g.exec(PYTHON, "identity.py").stdout.splitlines()) for _ in range(2)]
    run = cli(
        "run", "--name", "r", "--nodes", "2", "--ranks", "2", "--restarts", "0", "--", PYTHON, "identity.py",
        cwd=g.folder,
    )  # fmt: skip
    expected = [line.partition(" port ")[0] for line in sorted(run.stdout.splitlines())]
    assert len(expected) == 4
    for lines in told:
        assert [line.partition(" port ")[0] for line in lines] == expected
    ports = [{line.partition(" port ")[2] for line in lines} for lines in told]
    assert all(len(port) == 1 for port in ports), "one port an attempt"
    assert ports[0] != ports[1]


def test_the_second_exec_is_forked_and_has_its_own_arguments(g: IdleGang) -> None:
    show = (
        "import os, sys\nprint(os.getppid(), sys.argv, getattr(sys, 'orig_argv', sys.argv)[-2:], "
        "open('/proc/self/cmdline').read().split('\\0')[-3:])"
    )
    (g.folder / "argv.py").write_text(show)
    first = g.exec(PYTHON, "argv.py", "--rate", "1")
    zygote = g.process_of("allranks-zygote")
    second = g.exec(PYTHON, "argv.py", "--rate", "2")
    for done, rate in ((first, "1"), (second, "2")):
        argv = ["argv.py", "--rate", rate]
        assert f"rank 0 | {zygote} {argv} {argv[1:]} {[*argv[1:], '']}" in done.stdout, done.stdout + done.stderr
    assert g.process_of("allranks-zygote") == zygote


def test_a_command_restarts_only_when_asked_and_counts_from_0_each_time(g: IdleGang) -> None:
    assert g.exec("--restarts", "2", "--", PYTHON, "show.py", "fail").returncode == 7
    assert [c["attempt"] for c in g.status()["causes"]] == [0, 1, 2]
    assert g.exec("--restarts", "1", "--", PYTHON, "show.py", "fail").returncode == 7
    status = g.status()
    assert [c["attempt"] for c in status["causes"]] == [0, 1, 2, 3, 4]
    assert status["commands"][1]["reason"].endswith("(restarts: 1 of 1 used)")


def test_a_second_exec_is_refused_with_the_way_out_and_the_first_goes_on(g: IdleGang) -> None:
    with g.start(PYTHON, "show.py", "wait") as first:
        g.until("running")
        second = g.exec("true")
        assert second.returncode == 69
        assert "it runs another command" in second.stderr
        assert "stop it with 'allranks cancel --command g'" in second.stderr
        assert cli("cancel", "--command", "g").returncode == 0
        out, err = first.communicate(timeout=20)
    assert first.returncode == 143
    assert "cancelled in" in err
    assert len(out.splitlines()) == 4
    assert g.until("idle")["commands"][-1]["reason"] == "stopped by 'allranks cancel --command'"
    assert cli("cancel", "--command", "g").returncode == 69


def test_a_command_that_was_left_runs_on_and_its_lines_are_found_again(g: IdleGang) -> None:
    with g.start(PYTHON, "show.py", "wait") as first:
        g.until("running")
        time.sleep(0.3)
        first.send_signal(signal.SIGHUP)
        _, err = first.communicate(timeout=20)
        assert (first.returncode, "it runs on; see: allranks logs -f g" in err) == (0, True)
    with subprocess.Popen([*CLI, "logs", "-f", "g"], stdout=subprocess.PIPE, text=True) as again:
        assert again.stdout
        assert "I am" in again.stdout.readline()
        assert g.status()["phase"] == "running"
        cli("cancel", "--command", "g")
        assert again.wait(20) == 0, "logs -f ends with the command"


def test_an_exec_that_is_killed_leaves_its_command(g: IdleGang) -> None:
    with g.start(PYTHON, "show.py", "wait") as first:
        g.until("running")
        first.kill()
    time.sleep(0.5)
    assert g.status()["phase"] == "running"
    assert cli("cancel", "g").stdout == "run g: cancelled\n"
    assert g.status()["commands"][0]["phase"] == "cancelled"


def test_what_a_command_leaves_is_gone_before_the_next(g: IdleGang) -> None:
    g.exec("sh", "-c", "setsid sleep 321 & echo $! >> pids")
    pids = [int(pid) for pid in (g.folder / "pids").read_text().split()]
    assert len(pids) == 4
    assert not any(Path(f"/proc/{pid}/stat").exists() for pid in pids)


@pytest.mark.parametrize("who", ["agent 0", "zygote"])
def test_an_idle_gang_that_lost_a_part_is_idle_again_and_runs(g: IdleGang, who: str) -> None:
    assert g.exec(PYTHON, "show.py").returncode == 0
    g.kill(g.process_of("zygote") if who == "zygote" else g.agent(int(who[-1])))
    done = g.exec(PYTHON, "show.py", "again")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 4), done.stderr
    status = g.status()
    assert (status["phase"], status["attempt"], status["causes"]) == ("idle", 1, [])
    assert len(status["commands"]) == 2


def test_a_command_that_lost_the_coordinator_has_failed_and_the_gang_is_idle(g: IdleGang) -> None:
    with g.start(PYTHON, "show.py", "wait") as first:
        g.until("running")
        g.kill(g.agent(0))
        first.communicate(timeout=30)
        assert first.returncode == 1
    record = g.until("idle")
    assert [(c["kind"], c["node"]) for c in record["causes"]] == [("node_lost", 0)]
    assert record["commands"][0]["phase"] == "failed"
    assert g.exec(PYTHON, "show.py").returncode == 0


def test_torchrun_takes_commands_too(tmp_path: Path) -> None:
    with IdleGang(tmp_path, "--launcher", "torchrun") as g:
        (g.folder / "identity.py").write_text(IDENTITY)
        done = g.exec(PYTHON, "identity.py")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count('"TORCHELASTIC_RESTART_COUNT": "0"') == 4


def test_exec_names_what_is_not_there_and_what_is_no_idle_gang(tmp_path: Path) -> None:
    said = cli("exec", "h", "--", "true")
    assert (said.returncode, said.stderr.splitlines()[0]) == (69, "allranks: no run named h; there are no runs here")
    with RunningGang(tmp_path) as r:
        r.until("running")
        said = cli("exec", "g", "--", "true")
        assert said.returncode == 69
        assert said.stderr == (
            "allranks: run g has a command of its own, and ends with it; for a gang to exec on: "
            "'allranks up --name OTHER --nodes 2 --ranks 2'\n"
        )


def test_exec_refuses_what_could_not_even_start(g: IdleGang) -> None:
    said = g.exec("python", "shaw.py")
    assert said.returncode == 65
    assert said.stderr == f"allranks: no such script: shaw.py in {g.folder}; did you mean show.py?\n"
    said = g.exec("echo", "x" * 60_000)
    assert (said.returncode, "longer than 48 KiB" in said.stderr) == (2, True)
    assert g.exec().returncode == 2
    assert g.status()["phase"] == "idle"
    assert cli("cancel", "g").stdout == "run g: cancelled\n"
    said = g.exec("true")
    assert said.returncode == 69
    again = "start it again with 'allranks up --name g --nodes 2 --ranks 2'"
    assert said.stderr == f"allranks: g is over (cancelled); {again}\n"


def test_a_gang_can_be_asked_from_its_own_node(g: IdleGang, capfd: pytest.CaptureFixture[str]) -> None:
    """As an engine does whose coordinator cannot be dialled from here."""
    plan = str(g.run_directory / "plan.json")
    assert ask_main([plan, json.dumps({"what": "exec", "argv": ["true"], "restarts": 0})]) == 0
    assert json.loads(capfd.readouterr().out) == {"command": 0, "attempt": 0}
    assert [command["number"] for command in g.record()["commands"]] == [0]  # before the answer came
    for request in ({"what": "exec"}, {"what": "dance"}, {"what": "exec", "argv": [], "restarts": 0}):
        assert ask_main([plan, json.dumps(request)]) == 0
        assert json.loads(capfd.readouterr().out)["refused"].startswith("cannot do")
    eventually("the command is over", lambda: g.record()["commands"][0]["phase"] == "succeeded")


def test_a_stranger_without_the_secret_gives_no_command(g: IdleGang, capfd: pytest.CaptureFixture[str]) -> None:
    plan = json.loads((g.run_directory / "plan.json").read_text())
    elsewhere = g.folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret").write_text("0" * 64)
    (elsewhere / "plan.json").write_text(json.dumps({**plan, "state": str(elsewhere)}))
    assert ask_main([str(elsewhere / "plan.json"), json.dumps({"what": "exec", "argv": ["true"], "restarts": 0})]) == 69
    assert "does not know this run's secret" in capfd.readouterr().err
    assert g.status()["commands"] == []
    assert os.stat(g.run_directory / "secret").st_mode & 0o77 == 0
