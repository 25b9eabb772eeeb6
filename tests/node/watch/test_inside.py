"""The thread in a rank answers its agent, and the job cannot tell that it is there."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from allranks.node.watch import inside

PYTHON = os.environ.get("ALLRANKS_TEST_PYTHON", sys.executable)  # any from 3.8 on


class Rank:
    """A python with our hook that runs a script as rank 0; this is its agent."""

    def __init__(self, folder: Path, script: str, *flags: str) -> None:
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = f"allranks-test-{secrets.token_hex(8)}"
        self._listening.bind("\0" + name)
        self._listening.listen()
        self._listening.settimeout(15)
        (folder / "job.py").write_text(script)
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        env = inside.hooked({**env, "RANK": "0", "ALLRANKS_ATTEMPT": "2", inside.SOCKET: name})
        self.process = subprocess.Popen(
            [PYTHON, *flags, "job.py"], cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.link, self.hello, self.stacks = self.accept()

    def accept(self) -> tuple[socket.socket, dict[str, int], int]:
        link, _ = self._listening.accept()
        link.settimeout(15)
        line, fds, _, _ = socket.recv_fds(link, 4096, 1)
        return link, json.loads(line), fds[0]

    def ask(self, what: bytes = inside.FULL) -> dict[str, Any]:
        self.link.sendall(what)
        data = b""
        while not data.endswith(b"\n"):
            more = self.link.recv(1 << 16)
            assert more, "the link was closed"
            data += more
        answer: dict[str, Any] = json.loads(data)
        return answer

    def says(self, line: str = "") -> str:
        """Let the script's input() return, or only read what it prints next."""
        assert self.process.stdin
        assert self.process.stdout
        if line:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def ends(self) -> str:
        """Whatever it printed, once it has ended with 0."""
        out, _ = self.process.communicate("\n", timeout=20)
        assert self.process.returncode == 0, out
        return out

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.link.close()
        self._listening.close()
        os.close(self.stacks)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    ranks: list[Rank] = []

    def begin(script: str, *flags: str) -> Rank:
        ranks.append(Rank(tmp_path, script, *flags))
        return ranks[-1]

    yield begin
    for rank in ranks:
        rank.close()


def test_it_says_who_it_is_and_answers_with_stacks_and_memory(start: Any) -> None:
    rank = start("def waiting():\n    input()\nwaiting()\n")
    assert rank.hello == {"rank": 0, "attempt": 2, "signal": inside.STACK_SIGNAL}
    time.sleep(0.3)
    answer = rank.ask()
    (thread,) = answer["threads"]
    assert (thread["name"], thread["main"]) == ("MainThread", True)
    assert [frame[1:] for frame in thread["frames"]][:2] == [[2, "waiting"], [3, "<module>"]]
    assert answer["rss"] > 1 << 20
    assert answer["groups"] == {}
    assert rank.ask(inside.BRIEF) == {"entered": 0, "completed": 0, "waits": False}
    rank.ends()


def test_the_job_sees_nothing_of_it(start: Any) -> None:
    rank = start(
        "import os, sys, threading\n"
        "print([t.name for t in threading.enumerate()], threading.active_count(),\n"
        "      [n for n in sys.modules if 'allranks' in n or n == 'sitecustomize'],\n"
        "      [p for p in sys.path if 'allranks' in p], os.open('/dev/null', os.O_RDONLY))\n"
    )
    distributions = [name for name in ("sitecustomize",) if name in sys.modules]  # Debian's python brings one
    assert rank.ends() == f"['MainThread'] 1 {distributions} [] 3\n"


def test_the_jobs_own_sitecustomize_runs(start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("own = 1\n")
    monkeypatch.setattr(inside, "HOOK", f"{inside.HOOK}{os.pathsep}{tmp_path}")
    rank = start("import sitecustomize; print(sitecustomize.own, sitecustomize.__file__)\n")
    assert rank.ends() == f"1 {tmp_path}/sitecustomize.py\n"


def test_a_fork_gives_no_warning_that_plain_python_would_not_give(start: Any) -> None:
    script = (
        "import os\n"
        "for n in range(20):\n"
        "    pid = os.fork()\n"
        "    if not pid:\n        os._exit(0)\n"
        "    os.waitpid(pid, 0)\n"
        "print('forked', flush=True)\n"
        "input()\n"
    )
    rank = start(script, "-W", "always")
    assert rank.says() == "forked"
    assert rank.ask()["threads"], "it answers after forks as well"
    assert rank.ends() == ""


def test_a_forked_child_may_fork_in_turn_and_says_nothing(start: Any) -> None:
    script = """
import os, sys, time
child = os.fork()
if child == 0:
    grandchild = os.fork()
    if grandchild == 0:
        os._exit(0)
    os.waitpid(grandchild, 0)
    time.sleep(0.2)
    sys.exit(0)
os.waitpid(child, 0)
print("done")
"""
    assert start(script).ends() == "done\n"


def test_a_forked_child_holds_nothing_of_it(start: Any) -> None:
    rank = start(
        "import os, signal, sys, time\n"
        "if os.fork():\n    input()\n    sys.exit()\n"
        "print(os.getpid(), sorted(map(int, os.listdir('/proc/self/fd')))[-1] < 10, flush=True)\n"
        "time.sleep(60)\n"
    )
    pid, only_low = rank.says().split()
    assert only_low == "True"
    with open(f"/proc/{pid}/status") as file:
        caught = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt"))
    assert not caught >> (inside.STACK_SIGNAL - 1) & 1
    rank.process.stdin.write("\n")
    rank.process.stdin.flush()
    assert rank.process.wait(10) == 0
    assert rank.link.recv(1) == b""
    os.kill(int(pid), 9)


def test_helpers_that_multiprocessing_starts_do_not_connect(start: Any) -> None:
    rank = start(
        "import multiprocessing, time\n"
        "def work():\n    pass\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=work)\n"
        "    process.start()\n    process.join()\n    print(process.exitcode)\n"
    )
    assert rank.ends() == "0\n"
    rank._listening.settimeout(0.2)
    with pytest.raises(TimeoutError):
        rank.accept()


def test_a_rank_that_holds_the_gil_gives_its_stacks_by_signal(start: Any) -> None:
    rank = start(
        "import ctypes\ndef hold():\n"
        "    print('holds', flush=True)\n    while True:\n        ctypes.PyDLL(None).sleep(100)\nhold()\n"
    )
    rank.says()
    time.sleep(0.3)
    rank.link.settimeout(0.3)
    with pytest.raises(TimeoutError):
        rank.ask()
    os.kill(rank.process.pid, rank.hello["signal"])
    time.sleep(0.3)
    assert "in hold" in os.pread(rank.stacks, 1 << 16, 0).decode()


def test_signals_interrupt_the_jobs_own_thread(start: Any) -> None:
    rank = start(
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, lambda n, f: (_ for _ in ()).throw(SystemExit(0)))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    rank.says()
    began = time.monotonic()
    rank.process.terminate()
    assert rank.process.wait(10) == 0
    assert time.monotonic() - began < 5


def test_a_job_that_closes_all_descriptors_goes_on(start: Any) -> None:
    script = "import os\nos.closerange(3, 4096)\nif not os.fork():\n    os._exit(0)\nprint(os.wait()[1])\n"
    assert start(script, "-W", "ignore").ends() == "0\n"


def test_questions_in_the_midst_of_the_end_do_no_harm(start: Any) -> None:
    for _ in range(5):
        rank = start("import sys, time\ninput()\n")
        rank.link.sendall(inside.FULL * 200)
        time.sleep(0.02)
        assert rank.ends() == ""


@pytest.mark.parametrize("name", ["", "allranks-nobody-listens"])
def test_a_rank_without_an_agent_runs_unwatched(tmp_path: Path, name: str) -> None:
    (tmp_path / "job.py").write_text("import threading\nprint(len(__import__('os').listdir('/proc/self/task')))\n")
    env = inside.hooked({**os.environ, "RANK": "0", inside.SOCKET: name})
    done = subprocess.run([PYTHON, "job.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)


# ------------------------------------------------------------------------- what torch tells


class ProcessGroup:
    def __init__(self, sequence: int) -> None:
        self._get_sequence_number_for_group = lambda: sequence


def pretend(monkeypatch: pytest.MonkeyPatch, recorded: dict[str, Any], **sequences: int) -> None:
    """A torch with these process groups of ranks 0 and 1, whose flight recorder has this."""
    groups = {name: ProcessGroup(sequence) for name, sequence in sequences.items()}
    world = SimpleNamespace(
        pg_names={group: name for name, group in groups.items()},
        pg_group_ranks={group: {0: 0, 1: 1} for group in groups.values()},
    )
    recorder = SimpleNamespace(_dump_fr_trace_json=lambda includeCollectives: json.dumps(recorded))
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", recorder)
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(_world=world))


def entry(group: str, number: int, retired: bool, operation: str = "gloo:all_reduce", **more: Any) -> dict[str, Any]:
    return {
        "process_group": [group, "x"], "collective_seq_id": number, "retired": retired, "state": "scheduled",
        "profiling_name": operation, "input_sizes": [[4]], "is_p2p": False, **more,
    }  # fmt: skip


def test_sums_are_over_all_groups_and_a_group_never_used_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    status = {
        "0": {"last_enqueued_collective": "21", "last_completed_collective": "20"},
        "1": {"last_enqueued_collective": "-1", "last_completed_collective": "-1"},
        "2": {"last_enqueued_collective": "5", "last_completed_collective": "5"},
    }
    pretend(monkeypatch, {"pg_status": status})
    assert inside.brief() == {"entered": 26, "completed": 25, "waits": True}


def test_a_group_waits_in_its_first_unfinished_collective_and_sends_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        entry("g", 3, True), entry("g", 4, False, "nccl:all_gather"), entry("g", 5, False),
        entry("g", 9, False, "gloo:send", is_p2p=True), entry("h", 7, False, state="completed"),
    ]  # fmt: skip
    pretend(monkeypatch, {"entries": entries}, g=6, h=7, unused=0)
    groups = inside.groups()
    assert groups["g"] == {
        "members": [0, 1], "entered": 5, "completed": 3, "waits": True, "operation": "all_gather", "sizes": [[4]],
    }  # fmt: skip
    assert (groups["h"]["entered"], groups["h"]["completed"], groups["h"]["waits"]) == (7, 7, False)
    assert (groups["unused"]["entered"], groups["unused"]["waits"]) == (0, False)


def test_without_a_recorder_the_sequence_numbers_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, {}, g=6)
    assert inside.brief() == {"entered": 6, "completed": 6, "waits": False}
    assert inside.groups()["g"]["entered"] == 6


def test_a_group_whose_entries_have_left_the_ring_keeps_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, {"entries": [entry("busy", 5000, True)]}, busy=5000, quiet=12)
    quiet = inside.groups()["quiet"]
    assert (quiet["entered"], quiet["completed"], quiet["waits"]) == (12, 12, False)
