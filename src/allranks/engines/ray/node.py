"""The actor that is one node of a gang: it starts the node's agent, tells how it does, and never outlives its gang.

The coordinator's calls are its lease: when they stay away, the agent is killed with all its ranks, and so is a
coordinator on the same host that was stopped: Serve then makes another one, and clients are told at once.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from allranks import node as package
from allranks.engines.ray.printed import Printed
from allranks.node import processes
from allranks.node.environment import clean
from allranks.node.files import write_whole
from allranks.node.listen import free_port
from allranks.node.relay import parse
from allranks.serving.probe import status_of

LEASE = 3.5
"""Seconds without a word of the coordinator; Serve's own health checks would need longer to end a stopped one."""
PROBE = 0.3
"""Seconds between two questions whether node 0 serves."""
KEPT = 3
"""Folders of earlier gangs of a service that are kept on a host, for their logs."""
MOST_LINES = 2000
"""Lines that one answer takes along."""
AGENT = Path(package.__file__).with_name("__main__.py")


class Where(NamedTuple):
    """Where an actor is: Ray's id of the host, its address, and what is free there: the agents' port and HTTP's."""

    host: str
    address: str
    ports: tuple[int, int]


class Told(NamedTuple):
    """What an actor is told of its node. ``ready`` is the URL that answers 200 once node 0 serves, else empty."""

    node: int
    gang: dict[str, Any]
    secret: str
    env: dict[str, str]
    earlier: tuple[int, int]
    ready: str
    coordinator: int


class Node:
    """One node. Its methods are called by the gang's coordinator alone."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._agent: subprocess.Popen[bytes] | None = None
        self._told: Told | None = None
        self._printed: Printed | None = None
        self._heard = time.monotonic()
        self._ready = False

    def where(self, host: str, address: str) -> Where:
        """Take ports that nobody has."""
        return Where(host, address, (free_port(), free_port()))

    def start(self, told: Told) -> None:
        """Lay out the node's directory and start its agent there. Raises OSError."""
        self._told = told
        state = self._folder / f"node-{told.node}"
        (state / "logs").mkdir(parents=True)
        gang = {**told.gang, "state": str(state)}
        gang["workdir"] = os.path.abspath(os.path.expanduser(gang["workdir"] or "."))
        gang["cache"] = gang["cache"] or os.path.join(tempfile.gettempdir(), f"allranks-{os.getuid()}")
        plan = state / "plan.json"
        write_whole(str(plan), json.dumps(gang))
        write_whole(str(state / "secret"), told.secret, mode=0o600)
        attempt, used = told.earlier
        if attempt >= 0:  # what the agents of an earlier gang had used up: the budget is the service's
            write_whole(str(state / f"node-{told.node}.json"), json.dumps({"attempt": attempt, "used": used}))
        self._start_agent(told, state, plan)
        self._heard = time.monotonic()
        threading.Thread(target=self._watch, name="lease", daemon=True).start()
        if told.ready:
            threading.Thread(target=self._probe, args=(told.ready,), name="ready", daemon=True).start()

    def _start_agent(self, told: Told, state: Path, plan: Path) -> None:
        env = {
            **clean(os.environ),
            **told.env,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "ALLRANKS_NODE": str(told.node),
            "ALLRANKS_NODES": str(told.gang["nodes"]),
            "ALLRANKS_COORDINATOR": str(told.gang["coordinator"]),
        }
        output = state / "logs" / "output.log"
        with output.open("ab") as out:
            self._agent = subprocess.Popen(
                [sys.executable, str(AGENT), "init", str(plan)], env=env, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                preexec_fn=functools.partial(processes.die_with_parent, signal.SIGKILL),
            )  # fmt: skip
        self._printed = Printed(output, told.gang["log_limit"])

    def beat(self) -> dict[str, Any]:
        """How the node does; hearing of the coordinator, it lives on.

        ``code`` is its agent's exit code or None, ``status`` the gang's record (node 0), ``lines`` what was printed
        since the last time, ``ready`` whether node 0 said last that it serves.
        """
        self._heard = time.monotonic()
        assert self._told is not None  # the coordinator calls start first
        assert self._agent is not None
        code = self._agent.poll()
        return {"code": code, "status": self._status(), "lines": self._lines(), "ready": self._ready}

    def stop(self) -> None:
        """Let the node end in its own time: ranks get SIGTERM, and ``grace`` after it. ``beat`` tells when it has."""
        if self._agent is not None:
            self._agent.terminate()

    def _status(self) -> dict[str, Any] | None:
        assert self._told is not None
        if self._told.node:
            return None
        try:
            found: dict[str, Any] = json.loads((self._folder / "node-0" / "status.json").read_bytes())
            return found
        except (OSError, ValueError):
            return None  # it is not there yet

    def _lines(self) -> list[tuple[int, int, int | None, str]]:
        """Attempt, node, rank and text of each line, as the node's relay wrote it."""
        assert self._told is not None
        assert self._printed is not None  # start has opened it
        found: list[tuple[int, int, int | None, str]] = []
        for line in self._printed.lines(MOST_LINES):
            known = parse(line)
            if known is None:
                found.append((-1, self._told.node, None, line))
            else:
                attempt, at, rank, text = known
                found.append((attempt, self._told.node if at is None else at, rank, text))
        return found

    def _probe(self, url: str) -> None:
        """Ask whether node 0 serves: beside the beats, as one that is breaking may take its time to answer."""
        while True:
            said = status_of(url)
            self._ready = self._ready if said is None else said == 200
            time.sleep(PROBE)

    def _watch(self) -> None:
        """End everything once the coordinator has been silent for the lease."""
        while True:
            looked = time.monotonic()
            time.sleep(LEASE / 10)
            if time.monotonic() - looked > 1.0:  # this process was held up: the coordinator is not to blame
                self._heard = time.monotonic()
            if time.monotonic() - self._heard > LEASE:
                self._end()

    def _end(self) -> None:
        assert self._told is not None
        if self._told.node == 0:  # on the coordinator's own host, by how nodes are numbered
            _kill(self._told.coordinator)
        os._exit(1)  # the agent is killed with us, and its ranks with it


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has ended


def folder_of(root: str, service: str, gang: str) -> str:
    """Make the folder of a gang's nodes on this host, below Ray's own for this session; the oldest ones go."""
    above = Path(root, "allranks", service)
    above.mkdir(parents=True, exist_ok=True)
    old = sorted((path for path in above.iterdir() if path.is_dir()), key=os.path.getmtime)
    for path in old[: -KEPT or None]:
        shutil.rmtree(path, ignore_errors=True)
    made = above / gang
    made.mkdir(exist_ok=True)
    return str(made)
