"""One run of a draw, from its start to the checks, as the first process of namespaces of its own.

There nothing is but this run: every process, socket, mount and file in /dev/shm and TMPDIR that is there at the end and
was not at the beginning was left behind by it.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from allranks.engines.local.rundir import RunDir
from tests.chaos.draw import EVERY, STEPS, Draw
from tests.chaos.faults import BY_NAME, Drawn, Expected
from tests.chaos.gangs import Gang, LocalGang, NetworkGang

PATIENCE = 90.0
CGROUP = Path("/sys/fs/cgroup/memory")
MEMORY = "1G"


class Line(NamedTuple):
    """One line of the program's log; ``at`` is monotonic."""

    at: float
    attempt: int
    rank: int
    what: str
    number: int


class Stuck(Exception):
    """What was awaited did not come."""


class Harness:
    """``folder`` is a new one for this run. ``complaints`` are what is wrong, by what was checked."""

    def __init__(self, draw: Draw, folder: Path, clock: Path | None) -> None:
        self.draw, self.folder = draw, folder
        self.complaints: dict[str, list[str]] = {"cause": [], "budget": [], "resume": [], "result": [], "left": []}
        self._clock = clock
        self._struck: dict[int, float] = {}
        self._code: int | None = None

    def run(self) -> dict[str, Any]:
        """Everything; returns the report."""
        began = time.monotonic()
        self._prepare()
        before = _surroundings()
        gang = self._gang()
        try:
            gang.start()
            for number, drawn in enumerate(self.draw.faults):
                self._meet(gang, number, drawn)
            (self.folder / "out" / "release").touch()
            self._until("the end of the run", lambda: self._is_over(gang))
            self._code = gang.end()
        except (Stuck, LookupError, OSError, RuntimeError, subprocess.SubprocessError) as error:
            self.complaints["result"].append(f"{type(error).__name__}: {error}")
            gang.kill()
        self._check(gang, before)
        return {
            "draw": self.draw.to_json(), "says": str(self.draw), "complaints": self.complaints,
            "seconds": time.monotonic() - began, "causes": gang.record()["causes"],
        }  # fmt: skip

    def _prepare(self) -> None:
        for name in ("out", "checkpoints", "home", "tmp"):
            (self.folder / name).mkdir()
        for path, size in (("/dev/shm", "1g"), ("/run", "1m"), (self.folder / "checkpoints", "4m")):
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "chaos", path], check=True)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        if any(drawn.name == "oom" for drawn in self.draw.faults):
            limit_memory(self.folder.name)
        os.environ["HOME"] = str(self.folder / "home")
        os.environ["TMPDIR"] = str(self.folder / "tmp")
        os.environ["XDG_STATE_HOME"] = str(self.folder / "state")
        told = {
            "program": self.draw.program, "steps": STEPS, "every": EVERY, "out": str(self.folder / "out"),
            "checkpoints": str(self.folder / "checkpoints"), "faults": [
                {**asdict(f), "number": number, "inside": BY_NAME[f.name].strike is None}
                for number, f in enumerate(self.draw.faults)
            ],
        }  # fmt: skip
        (self.folder / "draw.json").write_text(json.dumps(told))

    def _gang(self) -> Gang:
        clocks = None
        if any(drawn.name == "clock" for drawn in self.draw.faults):
            assert self._clock
            clocks = self.folder / "clocks"
            clocks.write_bytes(bytes(4096))
            (self.folder / "clock.so").write_bytes(self._clock.read_bytes())
        return (NetworkGang if self.draw.network else LocalGang)(self.draw, self.folder, clocks)

    # ---- what happens

    def _meet(self, gang: Gang, number: int, drawn: Drawn) -> None:
        """One fault: wait for its moment, strike, and wait until the gang has taken it."""
        fault = BY_NAME[drawn.name]
        self._until(f"attempt {drawn.attempt} before {drawn.name}", lambda: self._is_time(gang, drawn))
        time.sleep(0.0 if drawn.early else drawn.wait)
        (self.folder / "out" / f"go-{number}").touch()
        if fault.strike:
            self._until(f"a target of {drawn.name}", lambda: self._struck_now(gang, drawn))
        if fault.expected(drawn) and fault.ends is None:
            if drawn.shock:
                self._shock(gang, drawn)
            self._until(f"a cause of {drawn.name}", lambda: drawn.attempt in _blamed(gang), self.draw.patience)

    def _struck_now(self, gang: Gang, drawn: Drawn) -> bool:
        """False where the record, which is behind on a busy machine, does not have the target yet."""
        strike = BY_NAME[drawn.name].strike
        assert strike
        self._struck[drawn.attempt] = time.monotonic()
        try:
            strike(gang, drawn)
        except LookupError:
            return False
        return True

    def _shock(self, gang: Gang, drawn: Drawn) -> None:
        """Another blow while the gang still takes the first, or has just taken it."""
        if BY_NAME[drawn.name].strike is None:
            self._until(f"{drawn.name} in rank {drawn.rank}", lambda: any(line.what == "harm" for line in self.lines()))
        time.sleep(drawn.wait)
        blow = replace(drawn, rank=0 if drawn.rank else self.draw.world - 1)
        blow = replace(blow, node=0 if drawn.shock == "coordinator" else self.draw.nodes - 1)
        strike = BY_NAME[drawn.shock].strike
        assert strike
        try:
            strike(gang, blow)
        except (LookupError, ProcessLookupError):
            pass  # it is gone already, and not back yet

    def _is_time(self, gang: Gang, drawn: Drawn) -> bool:
        """Early: as soon as the rank has a pid. Else all ranks are at work."""
        if drawn.early:
            try:
                return gang.record()["attempt"] == drawn.attempt and gang.pid_of(drawn.rank) > 0
            except LookupError:
                return False
        here = {line.rank for line in self.lines() if line.attempt == drawn.attempt and line.what == "step"}
        here |= {line.rank for line in self.lines() if line.attempt == drawn.attempt and line.what == "round"}
        inside = BY_NAME[drawn.name].strike is None
        return inside or (len(here) == self.draw.world and gang.record()["attempt"] == drawn.attempt)

    def _is_over(self, gang: Gang) -> bool:
        if gang.record()["phase"] in ("succeeded", "failed", "cancelled"):
            return True
        return self._terminal == ("failed", 70) and RunDir(gang.record_folder).holder() is None

    @property
    def _terminal(self) -> tuple[str, int] | None:
        return BY_NAME[self.draw.faults[-1].name].ends if self.draw.faults else None

    def _until(self, what: str, condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
        give_up = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > give_up:
                raise Stuck(f"not within {seconds:g} s: {what}")
            time.sleep(0.02)

    def lines(self) -> list[Line]:
        """What the program has logged so far."""
        try:
            text = (self.folder / "out" / "log").read_text()
        except FileNotFoundError:
            return []
        words = [line.split() for line in text.splitlines()]
        return [Line(float(w[0]), int(w[1]), int(w[2]), w[3], int(w[4])) for w in words if len(w) == 5]

    # ---- what is checked

    def _check(self, gang: Gang, before: dict[str, set[str]]) -> None:
        lines = self.lines()
        record = self._final_record(gang)
        self._check_causes(record)
        self._check_budget(record)
        self._check_evidence(gang)
        self._check_attempts(lines)
        self._check_resume(lines)
        if record["phase"] == "succeeded":
            self._check_result()
        give_up = time.monotonic() + 5
        while (left := _left(before)) and time.monotonic() < give_up:
            time.sleep(0.05)
        self.complaints["left"] += [*left, *self._stray_files()]

    def _final_record(self, gang: Gang) -> dict[str, Any]:
        if self.draw.network:
            return gang.record()
        return RunDir(gang.record_folder).status().to_json()

    @property
    def _expected(self) -> list[tuple[Drawn, Expected]]:
        found = [(drawn, BY_NAME[drawn.name].expected(drawn)) for drawn in self.draw.faults]
        return [(drawn, expected) for drawn, expected in found if expected is not None]

    def _check_causes(self, record: dict[str, Any]) -> None:
        causes, wrong = list(record["causes"]), self.complaints["cause"]
        if self._terminal and causes and causes[-1]["kind"] == "cancelled":
            causes.pop()
        replaced = [number for number, (drawn, _) in enumerate(self._expected) if drawn.name == "first pod"]
        due = self._expected[max(replaced, default=0) :]  # what a coordinator knew goes with its pod
        self._compare(causes[: len(due) - self.draw.shocks], due[: len(due) - self.draw.shocks])
        if self.draw.shocks:
            due += [(replace(due[-1][0], attempt=due[-1][0].attempt + 1), due[-1][1])] * (len(causes) > len(due))
            kinds = {due[-1][1].kind, "signal", "node_lost"}
            if [c["attempt"] for c in causes] != [d.attempt for d, _ in due] or causes[-1]["kind"] not in kinds:
                wrong.append(f"with a shock: {[(cause['attempt'], cause['message']) for cause in causes]}")
        elif len(causes) != len(due):
            told = [f"{c['attempt']}: {c['message']}" for c in causes]
            wrong.append(f"{len(causes)} causes of {len(due)}: {told}")

    def _compare(self, causes: list[dict[str, Any]], due: list[tuple[Drawn, Expected]]) -> None:
        for cause, (drawn, expected) in zip(causes, due, strict=False):
            complaint = expected.complaint(cause)
            if cause["attempt"] != drawn.attempt:
                complaint = f"it is of attempt {cause['attempt']}, not {drawn.attempt}; {complaint}"
            if complaint:
                self.complaints["cause"].append(f"{drawn.name} in attempt {drawn.attempt}: {complaint}")

    def _check_budget(self, record: dict[str, Any]) -> None:
        """A shock may count or not: it may hit the attempt that is ending, or the next one."""
        phase, code = "succeeded", 0
        if self._terminal:
            phase, code = self._terminal
        elif len(self._expected) > self.draw.restarts:
            phase, code = "failed", record["causes"][-1]["exit"] if record["causes"] else 1
        least = min(len(self._expected), self.draw.restarts)
        self._used = min(max(record["restarts"]["used"], least), least + self.draw.shocks)
        found = (record["phase"], record["exit_code"], record["restarts"]["used"])
        wanted = (phase, code, self._used)
        if found != wanted:
            told = f"phase, exit code and restarts are {found}, not {wanted}: {record['reason']}"
            self.complaints["budget"].append(told)
        if self._code is not None and not self.draw.network and self._code != code:
            self.complaints["budget"].append(f"run exited with {self._code}, not {code}")

    def _check_evidence(self, gang: Gang) -> None:
        """Stacks of all ranks, and in time."""
        for number, (drawn, expected) in enumerate(self._expected):
            gone = drawn.shock or any("pod" in fault.name for fault in self.draw.faults)
            if expected.kind != "hang" or gone:
                continue  # a pod's evidence goes with it; and another blow may have ended the attempt before
            for rank in range(self.draw.world):
                of = self.folder / f"node-{rank // self.draw.ranks}" if self.draw.network else gang.record_folder
                path = of / "evidence" / f"attempt-{drawn.attempt}" / f"rank-{rank}.stack.txt"
                inside = "" if drawn.early and rank == drawn.rank else "program.py"  # it may not have come so far
                if not path.exists() or inside not in path.read_text():
                    self.complaints["cause"].append(f"{drawn.name}: no stack of rank {rank}")
            harm = [line.at for line in self.lines() if line.attempt == drawn.attempt and line.what == "harm"]
            since = self._struck.get(drawn.attempt) or min(harm, default=0.0)
            after = [line.at for line in self.lines() if line.attempt == drawn.attempt + 1]
            if after and min(after) - since > self.draw.hang_timeout + 5 + 3:  # 3 for the next attempt's first line
                self.complaints["cause"].append(f"{drawn.name} ({number}) took {min(after) - since:.1f} s")

    def _check_attempts(self, lines: list[Line]) -> None:
        """As many as there should be, and never two at once."""
        found = sorted({line.attempt for line in lines})
        count = self._used + 1
        unheard = {drawn.attempt for drawn in self.draw.faults if drawn.early or drawn.shock}  # ended before a line
        unheard |= {attempt + 1 for attempt in unheard if self.draw.shocks}
        if set(range(count)) - unheard - set(found) or max(found, default=-1) >= count:
            self.complaints["budget"].append(f"attempts {found}, not {count} of them")
        for older, newer in pairwise(found):
            over = max(line.at for line in lines if line.attempt == older)
            if over > min(line.at for line in lines if line.attempt == newer):
                self.complaints["budget"].append(f"attempt {older} was alive when {newer} had begun")

    def _check_resume(self, lines: list[Line]) -> None:
        """Every rank goes on from the newest checkpoint that was whole, and makes every step after it."""
        for rank in range(self.draw.world):
            saver = rank if self.draw.program == "plain" else 0
            step = 0
            for line in (line for line in lines if line.rank == rank):
                if line.what == "resumed":
                    saves = [one for one in lines if one.rank == saver and one.attempt < line.attempt]
                    possible = _newest_whole(saves)
                    if line.number not in possible:
                        self.complaints["resume"].append(
                            f"rank {rank}, attempt {line.attempt}: resumed at {line.number}, not {sorted(possible)}"
                        )
                    step = line.number
                elif line.what == "step":
                    step += 1
                    if line.number != step:
                        self.complaints["resume"].append(f"rank {rank}: step {line.number} where {step} was due")

    def _check_result(self) -> None:
        for rank in range(self.draw.world):
            if self.draw.program == "torch":
                wanted = expected_weights([range(self.draw.world)] * STEPS)
            else:
                wanted = expected_weights([range(rank, rank + 1)] * STEPS)
            path = self.folder / "out" / f"result-{rank}"
            found = path.read_text() if path.exists() else "nothing"
            if found != str(wanted):
                self.complaints["result"].append(f"rank {rank} came to {found}, not {wanted}")

    def _stray_files(self) -> list[str]:
        """Whatever stands outside the run's directory and is not the program's."""
        runs = self.folder / "state" / "allranks" / "runs"
        known = [runs, self.folder / "home", self.folder / "state" / "allranks", self.folder / "state"]
        strays = []
        for folder, allowed in zip(known, ({".submit", "chaos"}, set(), {"runs"}, {"allranks"}), strict=True):
            if folder.exists():
                strays += [f"file {folder / name}" for name in set(os.listdir(folder)) - set(allowed)]
        return strays


def limit_memory(name: str) -> None:
    """Put this process, and with it the gang, under a limit of its own."""
    group = CGROUP / name
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(MEMORY)
    (group / "cgroup.procs").write_text(str(os.getpid()))


def expected_weights(steps: list[range]) -> int:
    """What ``program.py`` comes to without a fault; each step has the ranks that take part."""
    weights = 0
    for step, ranks in enumerate(steps):
        total = sum((rank + 1) * (step + 1) for rank in ranks)
        weights = (weights * 1103515245 + total) % (2**61 - 1)
    return weights


def _newest_whole(lines: list[Line]) -> set[int]:
    """The steps that the newest whole checkpoint can have: a save that a kill cut short may be whole or not."""
    steps = {0}
    for line in lines:
        if line.what == "saving":
            steps = {max(steps), line.number}
        elif line.what == "saved":
            steps = {line.number}
    return steps


def _blamed(gang: Gang) -> set[int]:
    return {cause["attempt"] for cause in gang.record()["causes"]}


# ---- what is there


def _surroundings() -> dict[str, set[str]]:
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    sockets = {f"{row[1]} ({table})" for table in ("tcp", "tcp6") for row in _rows(table) if row[3] == "0A"}
    sockets |= {f"{row[-1]}" for row in _rows("unix") if row[-1].startswith("@")}
    files = {f"{folder}/{name}" for folder in ("/dev/shm", os.environ["TMPDIR"]) for name in os.listdir(folder)}
    return {"processes": _processes(), "mounts": set(mounts), "sockets": sockets, "files": files}


def _rows(table: str) -> list[list[str]]:
    return [line.split() for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]


def _processes() -> set[str]:
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0] if entry.name.isdigit() else "Z"
            words = (entry / "cmdline").read_text(errors="replace").replace("\0", " ") if state != "Z" else ""
        except OSError:
            continue
        if state not in "ZX":
            found.add(f"{entry.name} {words}")
    return found


def _left(before: dict[str, set[str]]) -> list[str]:
    now = _surroundings()
    now["mounts"] = {mount for mount in now["mounts"] if " /run/netns" not in mount}  # the harness's own nodes
    return [f"{kind}: {one}" for kind, there in now.items() for one in sorted(there - before[kind])]
