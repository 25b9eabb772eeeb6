"""``make bench-self``: allranks beside torchrun and the deepspeed launcher, interleaved, as ratios.

Writes the table of docs/performance.md. ``--quick`` makes a few repetitions of each; ``--only`` names parts.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import launchers
from launchers import BIN, PROGRAMS, Program, Steps, TooSlow, running

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
DIGITS = ROOT / "examples" / "digits" / "train.py"


@dataclass
class Row:
    """Seconds of each way, in the order measured; None for a try that failed."""

    what: str
    seconds: dict[str, list[float | None]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, way: str, seconds: float | None) -> None:
        self.seconds.setdefault(way, []).append(seconds)
        print(f"  {self.what}: {way} {'failed' if seconds is None else f'{seconds:.2f} s'}", flush=True)

    def median(self, way: str) -> float:
        good = [value for value in self.seconds[way] if value is not None]
        return statistics.median(good) if good else float("nan")

    def lines(self) -> list[str]:
        base = self.median(next(iter(self.seconds)))
        rows = []
        for way, values in self.seconds.items():
            good = [value for value in values if value is not None]
            spread = f"{min(good):.2f}-{max(good):.2f} s" if good else "-"
            median = f"{self.median(way):.2f} s" if good else "-"
            ratio = f"{self.median(way) / base:.1f}x" if good else "never"
            rows.append(f"| {self.what} | {way} | {len(good)} of {len(values)} | {median} | {spread} | {ratio} |")
        return rows + [f"| | {note} | | | | |" for note in self.notes]


def first_all_reduce(repeats: int, ranks: int) -> list[Row]:
    """From the command to the moment at which every rank has done its first all-reduce."""
    row = Row(f"{ranks} ranks, start to first all-reduce")
    program = str(PROGRAMS / "first_all_reduce.py")
    with running(launchers.allranks(1, ranks, program)) as run:  # the first run of a script learns what it imports
        row.notes.append(f"the first run ever of the script: {_last_of(run, ranks) - run.started:.2f} s")
    for _ in range(repeats):
        with running(launchers.allranks(1, ranks, program, "stay", restarts=1)) as run:
            row.add("allranks, cold", _last_of(run, ranks) - run.started)
            killed = time.time()
            os.kill(_pid_of(random.randrange(ranks)), signal.SIGKILL)
            row.add("allranks, warm (kill -9 of a rank to the next)", _last_of(run, ranks, killed) - killed)
        with running(launchers.torchrun(ranks, program)) as run:
            row.add("torchrun", _last_of(run, ranks) - run.started)
    return [row]


def exec_to_first_line(repeats: int, nodes: int = 2, ranks: int = 2) -> list[Row]:
    """From ``exec`` on an idle gang to the first line after ``import torch``, made ready by ``up`` or not."""
    row = Row("exec on an idle gang, 2 x 2, to a line after import torch")
    program = str(PROGRAMS / "first_line.py")
    for _ in range(repeats):
        for way, ready in (
            ("first exec, script unknown to up", ()),
            ("first exec, script known to up", ("--", "python", program)),
        ):
            with launchers.up(nodes, ranks, *ready):
                row.add(way, _exec(program))
                if not ready:
                    row.add("second exec", _exec(program))
    return [row]


def _exec(program: str) -> float:
    with running(launchers.exec_on("python", program)) as run:
        return _first_of(run) - run.started


def _first_of(run: Program) -> float:
    return min(float(match[1]) for _, match in run.line(r"FIRST (\S+)", 0.0, 1))


def _last_of(run: Program, ranks: int, after: float = 0.0) -> float:
    return max(float(match[1]) for _, match in run.line(r"FIRST (\S+)", after, ranks))


def deepspeed_first_step(repeats: int, ranks: int = 4) -> list[Row]:
    """The example digits, from the command (or from the kill of a rank) to its first DeepSpeed step."""
    row = Row(f"DeepSpeed ZeRO-2, {ranks} ranks, start to first step")
    first = "first step done"
    for repeat in range(repeats + 1):
        with _scratch() as folder, running(launchers.allranks(2, ranks // 2, *_digits(folder), restarts=1)) as run:
            cold = run.line(first)[0][0] - run.started
            time.sleep(4 if repeat else 30)  # the first run ever learns, and its zygote imports what was learned
            killed = time.time()
            os.kill(_pid_of(random.randrange(ranks)), signal.SIGKILL)
            warm = run.line(first, after=killed)[0][0] - killed
        if not repeat:
            row.notes.append(f"the first run ever of the script: cold {cold:.2f} s, its restart {warm:.2f} s")
            continue
        row.add("allranks, warm (kill -9 of a rank to the next first step)", warm)
        row.add("allranks, cold", cold)
        for way, command in (("torchrun", launchers.torchrun), ("deepspeed", launchers.deepspeed)):
            with _scratch() as folder, running(command(ranks, *_digits(folder))) as run:
                row.add(way, run.line(first)[0][0] - run.started)
    return [row]


def _digits(folder: str) -> list[str]:
    return [str(DIGITS), "--epochs=1000", f"--checkpoints={folder}/checkpoints", f"--model={folder}/model.pt"]


class _scratch:
    def __enter__(self) -> str:
        self._folder = Steps(0).folder
        return str(self._folder)

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _pid_of(rank: int) -> int:
    record = launchers.status()
    return next(int(r["pid"]) for node in record["nodes"] for r in node["ranks"] if r["rank"] == rank)


def kill_to_next_step(kills: int, others: int, nodes: int = 2, ranks: int = 2) -> list[Row]:
    """Time from kill -9 of each rank in turn to the moment at which all ranks have made a step in new processes."""
    world = nodes * ranks
    row = Row(f"kill -9 of a rank to the next step of all, {nodes} x {ranks}")
    steps = Steps(world)
    wrong = 0
    _learn_steps(nodes, ranks)
    with running(
        launchers.allranks(nodes, ranks, str(PROGRAMS / "steps.py"), str(steps.folder), restarts=kills)
    ) as run:
        assert steps.wait(0, set()), "the gang never stepped"
        for kill in range(kills):
            time.sleep(random.uniform(0.3, 0.8))
            old, victim = steps.pids(), kill % world
            killed = time.time()
            os.kill(old[victim], signal.SIGKILL)
            back = steps.wait(killed, set(old), lambda: run.has_ended)
            row.add("allranks", back and back - killed)
            if kill and kill % max(1, kills // others) == 0:
                _torchrun_kills(row, nodes, ranks)
                time.sleep(2)
            cause = launchers.status()["causes"][-1]
            wrong += (cause["rank"], cause["node"], cause["signal"]) != (victim, victim // ranks, "SIGKILL")
    row.notes.append(f"rank, node and signal named right {kills - wrong} of {kills} times")
    shutil.rmtree(steps.folder)
    return [row]


def _learn_steps(nodes: int, ranks: int) -> None:
    """One short run before: a script that no zygote has seen yet restarts as slowly as its imports are."""
    steps = Steps(nodes * ranks)
    with running(launchers.allranks(nodes, ranks, str(PROGRAMS / "steps.py"), str(steps.folder))):
        _must(steps.wait(0, set()))
        time.sleep(4)
    shutil.rmtree(steps.folder)


def _must(stepped: float | None) -> None:
    if stepped is None:
        raise TooSlow("the gang never made a step")


def _torchrun_kills(row: Row, nodes: int, ranks: int) -> None:
    row.add("torchrun --max-restarts 1", _torchrun_kill(nodes, ranks))
    row.add("torchrun, store sharing off", _torchrun_kill(nodes, ranks, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"))


def _torchrun_kill(nodes: int, ranks: int, **env: str) -> float | None:
    steps, port = Steps(nodes * ranks), launchers.free_port()
    command = launchers.torchrun_node(port, nodes, ranks, str(PROGRAMS / "steps.py"), str(steps.folder))
    with ExitStack() as stack:
        agents = [stack.enter_context(running(command, **env)) for _ in range(nodes)]
        if not steps.wait(0, set(), seconds=90):
            return None
        time.sleep(0.5)
        old, killed = steps.pids(), time.time()
        os.kill(old[0], signal.SIGKILL)
        back = steps.wait(killed, set(old), lambda: all(agent.has_ended for agent in agents), seconds=45)
    shutil.rmtree(steps.folder)
    return back and back - killed


def command_line(repeats: int) -> list[Row]:
    """`allranks --help`, and a plan for a thousand nodes."""
    row, plan = Row("allranks --help"), Row("allranks plan, 1,000 nodes")
    for _ in range(repeats * 2):
        for one, argv in ((row, ["--help"]), (plan, ["plan", "--nodes", "1000", "--", "true"])):
            began = time.time()
            subprocess.run([BIN / "allranks", *argv], check=True, stdout=subprocess.DEVNULL)
            one.add("allranks", time.time() - began)
    return [row, plan]


def at_rest(seconds: float = 10.0) -> list[Row]:
    """Processor time and memory of the agents of an idle gang."""
    row = Row("an agent at rest")
    with running(launchers.allranks(2, 1, "-c", "import time; time.sleep(600)")) as run:
        run.line("running")
        pids = [int(node["ranks"][0]["pid"]) for node in launchers.status()["nodes"]]
        zygote = _parent(pids[0])
        agents = [pid for pid in _children(_parent(zygote)) if pid != zygote]
        time.sleep(2)
        before = sum(map(_cpu, agents))
        time.sleep(seconds)
        share = (sum(map(_cpu, agents)) - before) / seconds / len(agents)
        memory = max(map(_memory, agents))
    row.notes.append(f"{100 * share:.2f} % of a core, {memory} MB")
    row.seconds = {}
    return [row]


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _cpu(pid: int) -> float:
    return (int(_stat(pid)[11]) + int(_stat(pid)[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> int:
    fields = Path(f"/proc/{pid}/status").read_text().split()
    return int(fields[fields.index("VmRSS:") + 1]) // 1024


def write_page(rows: list[Row], command: str) -> None:
    """Replace the table between the page's markers."""
    head = "| what | way | came | median | spread | against the first |\n|---|---|---|---|---|---|"
    table = [head]
    for row in rows:
        table += row.lines() if row.seconds else [f"| {row.what} | {note} | | | | |" for note in row.notes]
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, Linux {platform.release()}"
    about = f"{date.today()}, {machine}: `{command}`"
    begin, end = "<!-- measured -->", "<!-- /measured -->"
    page = PAGE.read_text()
    before, _, rest = page.partition(begin)
    PAGE.write_text(f"{before}{begin}\n{about}\n\n" + "\n".join(table) + f"\n{end}{rest.partition(end)[2]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repetitions: does it all work?")
    parser.add_argument("--only", action="append", help="one part of: help, all-reduce, kill, deepspeed, exec, rest")
    parser.add_argument("--ranks", type=int, default=16, help="ranks of the first all-reduce")
    parser.add_argument("--kills", type=int, help="how often a rank is killed (100; 8 with --quick)")
    parser.add_argument("--nodes", type=int, default=2, help="nodes of the gang whose ranks are killed")
    parser.add_argument("--others", type=int, help="how often torchrun's restarts and launchers are tried (5; 2)")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended
    few = 2 if args.quick else 5
    per_node = 2 if args.nodes > 1 else args.ranks
    parts: dict[str, Callable[[], list[Row]]] = {
        "help": lambda: command_line(few),
        "all-reduce": lambda: first_all_reduce(few, args.ranks),
        "kill": lambda: kill_to_next_step(
            args.kills or (8 if args.quick else 100), args.others or few, args.nodes, per_node
        ),
        "deepspeed": lambda: deepspeed_first_step(args.others or few, 4 if args.nodes > 1 else args.ranks),
        "exec": lambda: exec_to_first_line(few),
        "rest": at_rest,
    }
    rows: list[Row] = []
    for name, part in parts.items():
        if not args.only or name in args.only:
            try:
                rows += part()
            except TooSlow as error:
                rows.append(Row(name, notes=[f"not measured: {error}"]))
            write_page(rows, " ".join(["bench/self.py", *sys.argv[1:]]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
