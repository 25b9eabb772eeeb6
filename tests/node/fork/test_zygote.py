"""The zygote's side of its protocol, and that no process ever stays behind. No torch here."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gangs.zygote_client import Channel, Zygote, eventually

pytestmark = pytest.mark.gang
ARGV = [sys.executable, "train.py"]
SLEEP = "import time; print('up', flush=True); time.sleep(60)"
DAEMON = """
import os, subprocess, time
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
open(f"daemon-{os.environ['RANK']}", "w").write(str(child.pid))
if os.environ.get("STAY"): time.sleep(60)
os._exit(0)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def script(folder: Path, source: str) -> None:
    (folder / "train.py").write_text(source)


@pytest.fixture
def zygote(tmp_path: Path) -> Iterator[Zygote]:
    """One that is ready, in a folder of its own, for train.py; its ranks sleep unless the test says otherwise."""
    script(tmp_path, SLEEP)
    with Zygote(ARGV, tmp_path, preload=["json"]) as zygote:
        zygote.wait("ready")
        yield zygote


def start(zygote: Zygote, rank: int = 0, **fields: object) -> int:
    pid: int = zygote.spawn(rank, **fields)["pid"]
    log = zygote.cwd / f"log-{rank}"
    assert eventually(lambda: log.exists() and "up" in log.read_text())
    return pid


# ---- ready


def test_ready_tells_what_was_imported_and_what_failed(tmp_path: Path) -> None:
    script(tmp_path, "")
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "broken_one.py").write_text("import not_there_either")
    env = {**os.environ, "PYTHONPATH": str(site)}
    with Zygote(ARGV, tmp_path, preload=["json", "no_such_module", "broken_one"], env=env) as zygote:
        ready = zygote.wait("ready")
        assert list(ready["failed"]) == ["broken_one"]
        assert "not_there_either" in ready["failed"]["broken_one"]
        assert (ready["preloaded"], ready["threads"], ready["poisoned"], ready["culprit"]) == (2, 1, "", ""), (
            "json was there already"
        )
        assert zygote.spawn()["how"] == "fork"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("raise RuntimeError('odd')", "importing strange_one raised RuntimeError: odd"),
        ("raise SystemExit(3)", "importing strange_one raised SystemExit: 3"),
        ("import threading, time; threading.Thread(target=time.sleep, args=(99,), daemon=True).start()", "a thread"),
        ("import signal; signal.signal(signal.SIGTERM, print)", "took SIGTERM for itself"),
    ],
)
def test_a_strange_import_ends_forking_and_names_the_culprit(source: str, why: str, tmp_path: Path) -> None:
    script(tmp_path, "print('fine')")
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "strange_one.py").write_text(source)
    env = {**os.environ, "PYTHONPATH": str(site)}
    with Zygote(ARGV, tmp_path, preload=["strange_one", "json"], env=env) as zygote:
        assert zygote.wait("ready")["culprit"] == "strange_one"
        output, status, spawned = zygote.run()
        assert (output, status, spawned["how"]) == ("fine\n", 0, "exec")
        assert why in spawned["why"]


def test_an_idle_zygote_uses_no_time_and_answers_within_milliseconds(zygote: Zygote) -> None:
    def used() -> int:
        fields = Path(f"/proc/{zygote.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = used()
    time.sleep(0.5)
    assert used() == before
    seconds = []
    for _ in range(20):
        began = time.monotonic()
        zygote.send(op="sweep")
        zygote.wait("swept")
        seconds.append(time.monotonic() - began)
    assert sorted(seconds)[10] < 0.1


# ---- starting


def test_a_rank_gets_its_environment_folder_and_log(zygote: Zygote) -> None:
    script(zygote.cwd, "import os; print(os.environ['RANK'], 'HOME' in os.environ, os.getcwd())")
    (zygote.cwd / "log-7").write_text("before\n")
    output, status, _ = zygote.run(7, set={"RANK": "7"}, unset=["HOME"])
    assert (output, status) == (f"before\n7 False {zygote.cwd}\n", 0)


@pytest.mark.parametrize(
    ("argv", "code", "error"),
    [
        (["no-such-program"], 127, "cannot run no-such-program: No such file or directory"),
        (["./train.py"], 126, "cannot run ./train.py: Permission denied"),
        (["./train.py/x"], 127, "cannot run ./train.py/x: Not a directory"),
    ],
)
def test_a_program_that_cannot_run_says_so_in_log_and_event(
    argv: list[str], code: int, error: str, zygote: Zygote
) -> None:
    zygote.spawn(how="exec", argv=argv)
    end = zygote.wait("exit", rank=0)
    assert os.waitstatus_to_exitcode(end["status"]) == code
    assert end["error"] == error
    assert (zygote.cwd / "log-0").read_text() == f"allranks: {error}\n"


def test_a_missing_folder_or_log_ends_the_rank_with_a_reason(zygote: Zygote) -> None:
    zygote.spawn(1, cwd="/nowhere")
    end = zygote.wait("exit", rank=1)
    assert (end["status"] >> 8, end["error"]) == (
        126,
        "cannot enter the working folder /nowhere: No such file or directory",
    )
    zygote.spawn(2, log="/nowhere/log")
    assert "cannot open the log /nowhere/log" in zygote.wait("exit", rank=2)["error"]


def test_another_command_is_exec_ed_with_nothing_of_the_zygote(zygote: Zygote) -> None:
    zygote.spawn(
        how="exec", argv=["sh", "-c", "ls /proc/self/fd; cat /proc/self/status; echo $RANK"], set={"RANK": "5"}
    )
    zygote.wait("exit", rank=0)
    lines = (zygote.cwd / "log-0").read_text().splitlines()
    assert lines[:4] == ["0", "1", "2", "3"]  # 3: the folder that ls reads
    assert lines[4].startswith("Name:")
    masks = {
        line.split(":")[0]: int(line.split()[1], 16) for line in lines if line.startswith("Sig") and "/" not in line
    }
    internal = 1 << 31 | 1 << 32  # signals 32 and 33 are the C library's own: whoever started us may have ignored them
    assert {name: mask & ~internal for name, mask in masks.items()} == dict.fromkeys(masks, 0)
    assert len(masks) == 4
    assert lines[-1] == "5"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"argv": [sys.executable, "other.py"]}, "its command line is not the zygote's"),
        ({"cwd": "/tmp"}, "its working folder /tmp is not the zygote's"),
        ({"set": {"TORCH_LOGS": "x"}}, "TORCH_LOGS is not as it was for the zygote"),
        ({"set": {"PYTHONPATH": "/elsewhere"}}, "PYTHONPATH is not as it was for the zygote"),
    ],
)
def test_what_differs_from_the_zygote_is_exec_ed_with_the_reason(
    fields: dict[str, Any], why: str, zygote: Zygote
) -> None:
    spawned = zygote.spawn(**fields)
    assert spawned["how"] == "exec"
    assert why in spawned["why"]


def test_output_of_a_killed_rank_is_kept_to_the_last_line(zygote: Zygote) -> None:
    script(zygote.cwd, "import os; print('one'); print('two'); os.kill(os.getpid(), 9)")
    assert zygote.run()[0] == "one\ntwo\n"


def test_the_script_is_read_anew_for_every_rank(zygote: Zygote) -> None:
    for text in ("one", "two"):
        script(zygote.cwd, f"print('{text}')")
        (zygote.cwd / "log-0").unlink(missing_ok=True)
        assert zygote.run()[0] == f"{text}\n"


def test_what_is_imported_after_the_fork_is_recorded_without_the_users_modules(zygote: Zygote) -> None:
    (zygote.cwd / "mine.py").write_text("import wave")
    script(zygote.cwd, "import json, mine, xml.dom, os; os.kill(os.getpid(), 9)")
    zygote.run(learn=str(zygote.cwd / "learned"))
    names = (zygote.cwd / "learned").read_text().split()
    assert [name for name in names if name in ("json", "mine", "wave", "xml", "xml.dom")] == ["wave", "xml", "xml.dom"]


def test_warmed_modules_are_there_in_the_next_rank(zygote: Zygote) -> None:
    script(zygote.cwd, "import sys; print('wave' in sys.modules)")
    assert zygote.run(0)[0] == "False\n"
    zygote.send(op="warm", modules=["wave", "no_such_module", 3])
    assert zygote.run(1)[0] == "True\n" or zygote.run(2)[0] == "True\n"


# ---- signals and ends


def test_a_signal_reaches_one_rank_or_all(zygote: Zygote) -> None:
    pids = [start(zygote, rank) for rank in range(3)]
    zygote.send(op="signal", signal=signal.SIGTERM, rank=1)
    end = zygote.wait("exit", rank=1)
    assert (end["pid"], end["status"]) == (pids[1], signal.SIGTERM)
    assert abs(end["at"] - time.time()) < 5
    assert end["maxrss_kb"] > 1000
    zygote.send(op="signal", signal=signal.SIGINT, rank=None)
    assert {zygote.wait("exit", rank=rank)["status"] for rank in (0, 2)} == {signal.SIGINT}


def test_a_stopped_rank_gets_its_signal(zygote: Zygote) -> None:
    pid = start(zygote)
    os.kill(pid, signal.SIGSTOP)
    zygote.send(op="signal", signal=signal.SIGTERM, rank=None)
    assert zygote.wait("exit", rank=0)["status"] == signal.SIGTERM


def test_a_signal_right_after_the_spawn_hits_the_rank(zygote: Zygote) -> None:
    for rank in range(10):
        pid = zygote.spawn(rank)["pid"]
        zygote.send(op="signal", signal=signal.SIGTERM, rank=rank)
        assert zygote.wait("exit", pid=pid)["status"] == signal.SIGTERM


def test_a_death_and_a_signal_are_dealt_with_in_the_midst_of_an_import(tmp_path: Path) -> None:
    script(tmp_path, SLEEP)
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "slow_one.py").write_text("import time; end = time.time() + 4\nwhile time.time() < end: sum(range(999))")
    env = {**os.environ, "PYTHONPATH": str(site)}
    with Zygote(ARGV, tmp_path, env=env) as zygote:
        zygote.wait("ready")
        first, second = (start(zygote, rank) for rank in range(2))
        zygote.send(op="warm", modules=["slow_one"])
        time.sleep(0.3)
        began = time.monotonic()
        os.kill(first, signal.SIGKILL)
        assert zygote.wait("exit", rank=0)["status"] == signal.SIGKILL
        zygote.send(op="signal", signal=signal.SIGTERM, rank=1)
        assert zygote.wait("exit", rank=1)["pid"] == second
        assert time.monotonic() - began < 2
        os.kill(zygote.process.pid, signal.SIGTERM)
        zygote.process.wait(2)
        assert time.monotonic() - began < 3


def test_a_command_run_by_an_import_keeps_its_exit_code(tmp_path: Path) -> None:
    script(tmp_path, "import asks_one; print(asks_one.code)")
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "asks_one.py").write_text("import subprocess; code = subprocess.call(['sh', '-c', 'sleep 0.2; exit 3'])")
    env = {**os.environ, "PYTHONPATH": str(site)}
    with Zygote(ARGV, tmp_path, preload=["asks_one"], env=env) as zygote:
        assert zygote.run()[0] == "3\n"


def test_garbage_gets_an_error_and_the_zygote_goes_on(zygote: Zygote) -> None:
    zygote.socket.send(b"garbage")
    assert "not a request" in zygote.wait("error")["message"]
    for message in ({"op": "dance"}, {"op": "spawn"}, {"op": "signal", "signal": "x"}, {"op": "warm", "modules": 3}):
        zygote.socket.send(json.dumps(message).encode())
        assert f"cannot {message['op']}" in zygote.wait("error")["message"]
    assert start(zygote)


# ---- nothing stays behind


def test_a_sweep_takes_daemons_but_not_what_belongs_to_another_node(zygote: Zygote) -> None:
    script(zygote.cwd, DAEMON)
    other = Channel(zygote.name, 1)
    other.wait("ready")
    other.send(
        op="spawn", rank=1, argv=ARGV, set={"RANK": "1", "ALLRANKS_NODE": "1", "STAY": "1"}, cwd=str(zygote.cwd),
        log=str(zygote.cwd / "log-1"), how="fork",
    )  # fmt: skip
    zygote.run(0, set={"RANK": "0", "ALLRANKS_NODE": "0"})
    assert eventually((zygote.cwd / "daemon-1").exists)
    assert eventually(lambda: (zygote.cwd / "daemon-1").read_text())
    mine, theirs = (int((zygote.cwd / f"daemon-{rank}").read_text()) for rank in (0, 1))
    zygote.send(op="sweep")
    assert zygote.wait("swept")["killed"] == [mine]
    assert is_alive(theirs)
    assert not is_alive(mine)
    other.close()
    assert eventually(lambda: not is_alive(theirs))


def test_an_agent_that_is_gone_leaves_no_rank(zygote: Zygote) -> None:
    agent = Channel(zygote.name, 1)
    agent.wait("ready")
    script(zygote.cwd, SLEEP)
    agent.send(op="spawn", rank=5, argv=ARGV, set={}, cwd=str(zygote.cwd), log=str(zygote.cwd / "log-5"), how="fork")
    pid, mine = agent.wait("spawned")["pid"], start(zygote)
    agent.close()
    assert eventually(lambda: not is_alive(pid))
    assert is_alive(mine)


def test_an_agent_that_replaces_another_is_ready_when_the_others_ranks_are_gone(zygote: Zygote) -> None:
    pid = start(zygote)
    replacing = Channel(zygote.name, 0)
    replacing.wait("ready")
    assert not is_alive(pid)
    replacing.close()


def test_the_end_of_the_lifeline_takes_everything(tmp_path: Path) -> None:
    script(tmp_path, DAEMON)
    with Zygote(ARGV, tmp_path) as zygote:
        zygote.wait("ready")
        pid = zygote.spawn(set={"RANK": "0", "STAY": "1"})["pid"]
        assert eventually(lambda: (tmp_path / "daemon-0").exists() and (tmp_path / "daemon-0").read_text())
    assert zygote.process.returncode == 0
    assert not is_alive(pid)
    assert not is_alive(int((tmp_path / "daemon-0").read_text()))


def test_ranks_die_with_a_zygote_that_is_killed(zygote: Zygote) -> None:
    pids = [start(zygote, 0), start(zygote, 1, how="exec")]
    zygote.process.kill()
    assert eventually(lambda: not any(is_alive(pid) for pid in pids), 2)


def test_ranks_die_with_whoever_started_the_zygote(tmp_path: Path) -> None:
    script(tmp_path, SLEEP)
    code = f"""
import sys, time; sys.path.insert(0, {os.getcwd()!r})
from pathlib import Path
from tests.gangs.zygote_client import Zygote
z = Zygote({ARGV!r}, Path({str(tmp_path)!r})); z.wait("ready")
print(z.process.pid, z.spawn()["pid"], flush=True); time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as init:
        assert init.stdout is not None
        pids = [int(word) for word in init.stdout.readline().split()]
        init.kill()
        assert len(pids) == 2
        assert eventually(lambda: not any(is_alive(pid) for pid in pids), 2)


def test_connections_of_a_zygote_do_not_reach_its_ranks(zygote: Zygote) -> None:
    script(zygote.cwd, "import os; print(sorted(os.listdir('/proc/self/fd')))")
    start_of_other = Channel(zygote.name, 1)
    start_of_other.wait("ready")
    assert zygote.run()[0] == "['0', '1', '2', '3']\n"
    start_of_other.close()


# ---- other interpreters


def interpreter(version: str) -> str | None:
    """Find one that works on PATH, or among pyenv's, whose shims on PATH may lead nowhere."""
    name = f"python{version}"
    found = [shutil.which(name), *sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/{name}"))]
    works = (path for path in found if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0)
    return str(next(works, "")) or None


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
def test_ranks_of_another_python_are_what_that_python_makes_of_the_script(version: str, tmp_path: Path) -> None:
    python = interpreter(version)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONUNBUFFERED": "1"}
    if not python:
        pytest.skip(f"NOT TESTED with python {version}: there is none here")
    script(
        tmp_path,
        """
import multiprocessing, sys
print(sys.version, sys.path, sys.argv, getattr(sys, "orig_argv", 0), sys.executable, sorted(globals()))
print(sys._getframe().f_back)
class C: pass
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool: print(pool.apply(C).__class__ is C)
    print("é", [m for m in sys.modules if "allranks" in m]); 1/0
""",
    )
    argv = [python, "train.py", "a"]
    plain = subprocess.run(argv, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    other = [python, "train.py", "other", "arguments"]  # the script's own may differ
    with Zygote(other, tmp_path, preload=["json", "multiprocessing.pool"], python=python, env=env) as zygote:
        zygote.wait("ready")
        output, status, spawned = zygote.run(argv=argv, learn=None)
    assert (spawned["how"], status) == ("fork", 256)
    assert re.sub("0x[0-9a-f]+", "", output) == re.sub("0x[0-9a-f]+", "", plain.stdout.decode())
