"""Gangs to be broken: one of this machine, by the command line, and one of network namespaces, an init in each.

Both are meant to live in namespaces of their own (``harness.py``): their paths and interfaces are fixed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from allranks import __version__
from allranks.engines.local.control import SUPERVISOR
from tests.chaos.draw import Draw

PROGRAM = Path(__file__).with_name("program.py")
NAME = "chaos"
PORT = 29400
GRACE = 2.0


class Gang(ABC):
    """One run of a draw. ``folder`` is its own; the run's directory is ``record_folder``."""

    record_folder: Path

    def __init__(self, draw: Draw, folder: Path, clocks: Path | None) -> None:
        self.draw, self.folder = draw, folder
        self._clocks = clocks

    @abstractmethod
    def start(self) -> None:
        """Begin; the record may not be there yet."""

    @abstractmethod
    def supervisor(self, node: int) -> int:
        """The pid of the init that has this node."""

    @abstractmethod
    def end(self) -> int | None:
        """Wait for whoever was started here to end by itself; the exit code that the user would see, if any."""

    @abstractmethod
    def kill(self) -> None:
        """End everything, for a run that does not come to an end."""

    def kill_client(self) -> None:
        raise NotImplementedError

    def cut(self, node: int) -> None:
        raise NotImplementedError

    def heal(self, node: int) -> None:
        raise NotImplementedError

    def replace(self, node: int) -> None:
        raise NotImplementedError

    def record(self) -> dict[str, Any]:
        """What the coordinator has written; while there is nothing, attempt -1."""
        try:
            found: dict[str, Any] = json.loads((self.record_folder / "status.json").read_text())
        except (OSError, ValueError):
            return {
                "phase": "", "reason": "there is no record", "attempt": -1, "causes": [], "nodes": [],
                "exit_code": None, "restarts": {"used": 0},
            }  # fmt: skip
        return found

    def pid_of(self, rank: int) -> int:
        """Raises LookupError as long as the record has none."""
        for node in self.record()["nodes"]:
            for one in node["ranks"]:
                if one["rank"] == rank and one["pid"]:
                    return int(one["pid"])
        raise LookupError(f"rank {rank} has no pid in the record")

    def agent(self, node: int) -> int:
        return self._child(node, "\0agent\0", f"/node-{node}/" if self.draw.network else f"ALLRANKS_NODE={node}\0")

    def zygote(self, node: int) -> int:
        return self._child(node, "zygote", "")  # it covers its command line

    def _child(self, node: int, part: str, mark: str) -> int:
        """By its command line and what else it has. Raises LookupError when the init has no such child just now."""
        init = self.supervisor(node)
        for pid in Path(f"/proc/{init}/task/{init}/children").read_text().split():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
                environment = Path(f"/proc/{pid}/environ").read_text(errors="replace")
            except OSError:
                continue
            if part in words and mark in words + environment:
                return int(pid)
        raise LookupError(f"the init of node {node} has no {part.strip(chr(0))}")

    def set_clock(self, node: int, seconds: float) -> None:
        assert self._clocks
        with self._clocks.open("r+b") as file:
            file.seek(8 * node)
            file.write(struct.pack("d", seconds))

    def environment(self) -> dict[str, str]:
        found = dict(os.environ)
        if self._clocks:
            found |= {"LD_PRELOAD": str(self._clocks.with_name("clock.so")), "CHAOS_CLOCKS": str(self._clocks)}
        return found

    @property
    def argv(self) -> list[str]:
        return [sys.executable, str(PROGRAM), str(self.folder / "draw.json")]


class LocalGang(Gang):
    """Started as a user does, in the foreground or detached."""

    def __init__(self, draw: Draw, folder: Path, clocks: Path | None) -> None:
        super().__init__(draw, folder, clocks)
        self.record_folder = Path(os.environ["XDG_STATE_HOME"], "allranks", "runs", NAME)
        self._client: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        failure = {
            "restarts": self.draw.restarts, "deadline": "1h",
            "hang_timeout": f"{self.draw.hang_timeout:g}s", "grace": f"{GRACE:g}s",
        }  # fmt: skip
        job = {
            "kind": "Job", "name": NAME, "nodes": self.draw.nodes, "ranks_per_node": self.draw.ranks,
            "run": self.argv, "failure": failure,
        }  # fmt: skip
        (self.folder / "job.yaml").write_text(json.dumps(job))
        command = [sys.executable, "-m", "allranks", "run", "job.yaml", *([] if self.draw.attached else ["--detach"])]
        with (self.folder / "client.log").open("wb") as out:
            self._client = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.environment()
            )
        if not self.draw.attached:
            code = self._client.wait(60)
            if code:
                raise RuntimeError(f"run --detach ended with {code}: {(self.folder / 'client.log').read_text()}")

    def supervisor(self, node: int) -> int:
        return int((self.record_folder / "lock").read_text().split()[0])

    def kill_client(self) -> None:
        assert self._client
        self._client.kill()

    def end(self) -> int | None:
        assert self._client
        code = self._client.wait(60)
        return code if self.draw.attached and code >= 0 else None

    def kill(self) -> None:
        try:
            os.kill(self.supervisor(0), signal.SIGKILL)
        except (OSError, IndexError):
            pass  # it never began, or has ended


class NetworkGang(Gang):
    """A network namespace a node, all on one bridge; in each an init, told who it is as a PyTorchJob's pods are."""

    def __init__(self, draw: Draw, folder: Path, clocks: Path | None) -> None:
        super().__init__(draw, folder, clocks)
        self.record_folder = folder / "node-0"
        self._inits: list[subprocess.Popen[bytes] | None] = [None] * draw.nodes

    def start(self) -> None:
        _ip("link add bridge0 type bridge")
        _ip("link set bridge0 up")
        for node in range(self.draw.nodes):
            _ip(f"netns add n{node}")
            _ip(f"link add v{node} type veth peer name eth0 netns n{node}")
            _ip(f"link set v{node} master bridge0 up")
            _ip(f"-n n{node} addr add 10.9.0.{node + 1}/24 dev eth0")
            _ip(f"-n n{node} link set eth0 up")
            _ip(f"-n n{node} link set lo up")
        for node in range(self.draw.nodes):
            self._start_node(node)

    def _start_node(self, node: int) -> None:
        state = self.folder / f"node-{node}"
        shutil.rmtree(state, ignore_errors=True)
        (state / "logs").mkdir(parents=True)
        (state / "secret").write_text("ab" * 32)
        (state / "plan.json").write_text(json.dumps(self._plan(state)))
        place = {
            "PET_NNODES": str(self.draw.nodes), "PET_NODE_RANK": str(node), "RANK": str(node),
            "MASTER_ADDR": "10.9.0.1", "CHAOS_NODE": str(node),
        }  # fmt: skip
        with (state / "logs" / "init.log").open("ab") as out:
            self._inits[node] = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/n{node}", sys.executable, SUPERVISOR, "init", state / "plan.json"],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**self.environment(), **place},
            )  # fmt: skip

    def _plan(self, state: Path) -> dict[str, Any]:
        return {
            "run": NAME, "engine": "pytorchjob", "version": __version__, "nodes": self.draw.nodes,
            "ranks_per_node": self.draw.ranks, "launcher": "native", "argv": self.argv, "workdir": str(self.folder),
            "coordinator": "10.9.0.1", "port": PORT, "state": str(state), "restarts": self.draw.restarts,
            "cache": os.environ["XDG_CACHE_HOME"] + "/allranks", "env": {"GLOO_SOCKET_IFNAME": "eth0"},
            "hang_timeout": self.draw.hang_timeout, "grace": GRACE, "lease": self.draw.lease,
            "deadline": 3600.0, "start_timeout": 60.0,
        }  # fmt: skip

    def supervisor(self, node: int) -> int:
        init = self._inits[node]
        assert init
        return init.pid

    def cut(self, node: int) -> None:
        """Nothing passes, and nobody is told: the interfaces stay up."""
        _run("bridge", "link", "set", "dev", f"v{node}", "state", "0")

    def heal(self, node: int) -> None:
        _run("bridge", "link", "set", "dev", f"v{node}", "state", "3")

    def replace(self, node: int) -> None:
        self.cut(node)
        init = self._inits[node]
        assert init
        init.kill()
        init.wait()
        time.sleep(1.0)
        self._start_node(node)
        self.heal(node)

    def end(self) -> int | None:
        codes = [init.wait(60) for init in self._inits if init]
        return codes[0]

    def kill(self) -> None:
        for init in self._inits:
            if init:
                init.kill()


def _ip(arguments: str) -> None:
    _run("ip", *arguments.split())


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
