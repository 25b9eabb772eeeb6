"""allranks, torchrun and the deepspeed launcher as the bench starts them: real command lines, ended whole."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
PROGRAMS = Path(__file__).parent / "programs"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")  # which the script of that name runs
PATIENCE = 180.0


class TooSlow(Exception):
    """What was awaited did not come within PATIENCE, or the program ended first."""


class Program:
    """A launcher at work; its output is read as it comes."""

    def __init__(self, argv: Sequence[str], **env: str) -> None:
        self.started = time.time()
        self.lines: list[tuple[float, str]] = []
        self._process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            stdin=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1", **env},
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self.lines.append((time.time(), line))

    def line(self, pattern: str, after: float = 0.0, count: int = 1) -> list[tuple[float, re.Match[str]]]:
        """Wait for ``count`` lines that match and came after the moment; raises TooSlow."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            ended = self._process.poll() is not None
            found = [(at, m) for at, text in list(self.lines) if at > after and (m := re.search(pattern, text))]
            if len(found) >= count:
                return found
            if ended and not self._reader.is_alive():
                break
            time.sleep(0.01)
        raise TooSlow(f"no {pattern!r}: " + "".join(text for _, text in self.lines[-5:]))

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> None:
        """SIGTERM, then SIGKILL for it and everything below it that is left."""
        below = _descendants(self._process.pid)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
        for pid in [*below, *_descendants(self._process.pid)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has ended by itself, as it should
        self._process.wait()
        self._reader.join()


def _descendants(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(child) for child in children] + [below for child in children for below in _descendants(int(child))]


@contextmanager
def running(argv: Sequence[str], **env: str) -> Iterator[Program]:
    """Run a launcher until the block ends, and leave nothing of it."""
    program = Program(argv, **env)
    try:
        yield program
    finally:
        program.end()


def allranks(nodes: int, ranks: int, *command: str, restarts: int = 0, name: str = "bench") -> list[str]:
    return [
        sys.executable, "-m", "allranks", "run", "--name", name, "--nodes", str(nodes), "--ranks", str(ranks),
        "--restarts", str(restarts), "--", "python", *command,
    ]  # fmt: skip


@contextmanager
def up(nodes: int, ranks: int, *ready_for: str, name: str = "bench") -> Iterator[None]:
    """Keep a gang up until the block ends."""
    size = ["--name", name, "--nodes", str(nodes), "--ranks", str(ranks)]
    subprocess.run([sys.executable, "-m", "allranks", "up", *size, *ready_for], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run([sys.executable, "-m", "allranks", "cancel", name], check=True, capture_output=True)


def exec_on(*command: str, name: str = "bench") -> list[str]:
    return [sys.executable, "-m", "allranks", "exec", name, "--", *command]


def torchrun(ranks: int, *command: str) -> list[str]:
    return [*TORCHRUN, f"--nproc-per-node={ranks}", f"--master-port={free_port()}", *command]


def torchrun_node(port: int, nodes: int, ranks: int, *command: str) -> list[str]:
    """One of several agents that restart the gang once, as torchrun's documentation has it."""
    return [
        *TORCHRUN, f"--nnodes={nodes}", f"--nproc-per-node={ranks}", "--max-restarts=1",
        "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id=bench{port}", *command,
    ]  # fmt: skip


def deepspeed(ranks: int, *command: str) -> list[str]:
    return [str(BIN / "deepspeed"), f"--num_gpus={ranks}", f"--master_port={free_port()}", *command]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def status(name: str = "bench") -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "allranks", "status", name, "-o", "json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


class Steps:
    """What bench/programs/steps.py writes: the time of each rank's steps, and the process that made them."""

    def __init__(self, world_size: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bench-steps-"))
        self._files = [self.folder / f"steps.{rank}" for rank in range(world_size)]

    def newest(self) -> list[tuple[float, int, int] | None]:
        """Each rank's last whole line: time, pid, step."""
        return [self._last(path) for path in self._files]

    def _last(self, path: Path) -> tuple[float, int, int] | None:
        lines = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
        if not lines:
            return None
        at, pid, step = lines[-1].split()
        return float(at), int(pid), int(step)

    def _first(self, after: float, old: set[int]) -> list[float]:
        """When each rank made its first step after the moment, in a process that is none of the old ones."""
        first = []
        for path in self._files:
            text = path.read_text().rpartition("\n")[0] if path.exists() else ""
            lines = [line.split() for line in text.splitlines()]
            first += [float(at) for at, pid, _ in lines if float(at) > after and int(pid) not in old][:1]
        return first

    def wait(
        self, after: float, old: set[int], gone: Callable[[], bool] = lambda: False, seconds: float = 60.0
    ) -> float | None:
        """The moment at which all ranks had made a step in new processes; None when they never did."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            first = self._first(after, old)
            if len(first) == len(self._files):
                return max(first)
            if gone():
                return None
            time.sleep(0.01)
        return None

    def pids(self) -> list[int]:
        return [line[1] for line in self.newest() if line]
