"""A real gang under test: started by the real command line, looked at through it, broken by real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CLI = [sys.executable, "-m", "allranks"]

STEPS = '''
"""Appends a line a step to OUT/steps; stdlib only, so that it starts at once."""
import os, sys, time
rank, attempt = os.environ["RANK"], os.environ["ALLRANKS_ATTEMPT"]
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
for step in range(int(sys.argv[2]) if len(sys.argv) > 2 else 100000):
    os.write(out, f"{time.time():.4f} {attempt} {rank} {step}\\n".encode())
    time.sleep(0.02)
'''


def cli(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``allranks`` to its end, within 60 s."""
    return subprocess.run([*CLI, *arguments], capture_output=True, text=True, timeout=60, **options)


def eventually(what: str, condition: Callable[[], Any], seconds: float = 15.0) -> Any:
    """Wait until the condition holds and return what it gave; fail with ``what`` after ``seconds``."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds:g} s: {what}")


class RunningGang:
    """A run called ``name``, started detached or attached; ended, whatever happens, on leaving the context."""

    def __init__(
        self, folder: Path, *command: str, name: str = "g", nodes: int = 2, ranks: int = 2, detach: bool = True,
        options: tuple[str, ...] = (), script: str = STEPS,
    ) -> None:  # fmt: skip
        self.folder, self.name, self.detach = folder, name, detach
        self.steps_file = folder / "steps"
        (folder / "steps.py").write_text(script)
        program = command or (sys.executable, "steps.py", str(self.steps_file))
        self._argv = [
            "run", "--name", name, "--nodes", str(nodes), "--ranks", str(ranks), *options,
            *(["--detach"] if detach else []), "--", *program,
        ]  # fmt: skip
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> RunningGang:
        if self.detach:
            done = cli(*self._argv, cwd=self.folder)
            assert done.returncode == 0, done.stderr + done.stdout
        else:
            self.process = subprocess.Popen(
                [*CLI, *self._argv], cwd=self.folder, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        if self.run_directory.exists():
            cli("cancel", self.name)
        if self.process is not None:
            self.process.communicate(timeout=30)

    @property
    def run_directory(self) -> Path:
        return Path(os.environ["XDG_STATE_HOME"]) / "allranks" / "runs" / self.name

    def status(self) -> dict[str, Any]:
        """What ``allranks status -o json`` prints."""
        done = cli("status", self.name, "-o", "json")
        assert done.returncode == 0, done.stderr
        parsed: dict[str, Any] = json.loads(done.stdout)
        return parsed

    def record(self) -> dict[str, Any]:
        """The coordinator's own record: cheaper than the command line, for waiting."""
        try:
            parsed: dict[str, Any] = json.loads((self.run_directory / "status.json").read_text())
        except (OSError, ValueError):
            return {"phase": "", "attempt": -1}
        return parsed

    def until(self, phase: str, attempt: int | None = None, seconds: float = 20.0) -> dict[str, Any]:
        """Wait for a phase (and attempt); returns the record then."""

        def there() -> dict[str, Any] | None:
            record = self.record()
            return record if record["phase"] == phase and attempt in (None, record["attempt"]) else None

        try:
            found: dict[str, Any] = eventually(f"{self.name} {phase} (attempt {attempt})", there, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.record()}\n{self.agent_logs()}") from None
        return found

    def agent_logs(self) -> str:
        """Our own logs, for a failing test's message."""
        return "\n".join(f"{path.name}: {path.read_text()}" for path in self.run_directory.glob("logs/*.log"))

    def pid_of(self, rank: int) -> int:
        record = self.record()
        pids = [r["pid"] for node in record["nodes"] for r in node["ranks"] if r["rank"] == rank]
        assert pids[0], record
        return int(pids[0])

    def supervisor(self) -> int:
        return int((self.run_directory / "lock").read_text().split()[0])

    def process_of(self, *words: str) -> int:
        """The pid of a child of the supervisor whose command line has all these words."""
        children = Path(f"/proc/{self.supervisor()}/task/{self.supervisor()}/children").read_text().split()
        for pid in children:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            if all(word in line for word in words):
                return int(pid)
        raise AssertionError(f"no child of the supervisor has {words} in its command line")

    def agent(self, node: int) -> int:
        """The pid of one node's agent."""
        children = Path(f"/proc/{self.supervisor()}/task/{self.supervisor()}/children").read_text().split()
        pod = f"{self.run_directory}/pods/{self.record()['nodes'][node]['name']}"
        for pid in children:
            variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
            if f"ALLRANKS_NODE={node}" in variables or f"ALLRANKS_ROOT={pod}" in variables:
                return int(pid)
        raise AssertionError(f"node {node} has no agent")

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def stepping(self, attempt: int, ranks: int = 4, seconds: float = 15.0) -> None:
        """Wait until all ranks have made a step in the attempt."""

        def all_have() -> bool:
            text = self.steps_file.read_text() if self.steps_file.exists() else ""
            lines = [line.split() for line in text.splitlines()]
            return len({line[2] for line in lines if len(line) == 4 and int(line[1]) == attempt}) == ranks

        eventually(f"all ranks step in attempt {attempt}\n{self.agent_logs()}", all_have, seconds)
        self.until("running", attempt)
