"""The coordinator: the Serve replica that owns one gang, from its placement group to its last word.

It is no part of any request. It starts an actor for each node, hears them twice a second and tells the door what they
say. Ranks that die are the agents' business: they start all of them again in place. What the agents cannot mend (an
actor or its agent is gone, or silent) ends this process, and Serve makes a new replica with a new gang.
"""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from allranks.engines.ray.node import MOST_LINES, Node, Told, Where, folder_of
from allranks.engines.ray.said import said
from allranks.engines.ray.verdict import Broken, GaveUp, judge
from allranks.errors import first_line
from allranks.spec.service import KEY_VARIABLE

BEAT = 0.5
SILENCE = 2.5
"""Seconds for the nodes to answer; a host that is gone answers nothing. With a beat it is less than a node's lease."""
START = 120.0
"""Seconds for the actors of a gang to run once their places are reserved: Ray starts a process for each."""
TELL = 3.0
"""Seconds for the door to hear of something."""
SLACK = 10.0
"""Seconds that a gang may take to end beyond its grace."""


class Gang:
    """One gang. ``told`` is what the plan says of the service (``plan.told``)."""

    async def __init__(self, told: dict[str, Any]) -> None:  # type: ignore[misc]  # Serve awaits it
        """Return once node 0 serves: meanwhile Serve's thread is free for ``__del__``. Raises RuntimeError."""
        self._told = told
        self._name = serve.get_replica_context().replica_id.unique_id
        self._door = serve.get_deployment_handle("door", serve.get_replica_context().app_name)
        self._nodes: list[Any] = []
        self._began = self._stopping = False
        self._over = ""
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._seat: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._address = ""
        self._lines: list[Any] = []
        self._news: dict[str, Any] = {}
        self._lock, self._more = threading.Lock(), threading.Event()
        threading.Thread(target=self._keep_telling, name="words", daemon=True).start()
        threading.Thread(target=self._run, name="gang", daemon=True).start()
        await asyncio.to_thread(self._ready.wait)
        if self._over and not self._began:
            raise RuntimeError(self._over)

    def check_health(self) -> None:
        """Serve's question. A gang that gave up is not healthy, though it will not get better."""
        if self._over:
            raise RuntimeError(self._over)

    def __del__(self) -> None:
        """Serve's way to say that the replica ends: running requests have the grace to end too."""
        self._stopping = True
        if self._nodes and not self._over:
            self._ended.wait(self._told["gang"]["grace"] + SLACK)

    # ---- the gang's life

    def _run(self) -> None:
        try:
            self._seat = self._join()
            self._form()
            self._follow()
        except GaveUp as error:
            self._over = str(error)
            self._send(over=self._over)
        except Exception as error:  # noqa: BLE001 - whatever it is: without a coordinator there must be no gang
            self._die(str(error) if isinstance(error, Broken) else said(error))
        self._drop()
        self._ready.set()
        self._ended.set()

    def _join(self) -> dict[str, Any]:
        """Take a seat: its number, what was used up before, and the service's key. Raises GaveUp."""
        until = time.monotonic() + START
        while True:
            try:
                seat: dict[str, Any] = self._door.join.remote(self._name).result(timeout_s=TELL)
            except Exception as error:
                if time.monotonic() > until:
                    raise Broken(f"the door of the service cannot be reached: {said(error)}") from error
                time.sleep(BEAT)
                continue
            if seat.get("over"):
                raise GaveUp(seat["over"])
            if "wait" not in seat:
                return seat
            time.sleep(BEAT)  # until the key is there, or the one who had the seat is known to be gone

    def _form(self) -> None:
        """An actor for each bundle, numbered so that nodes of one host are neighbours and node 0 is on ours."""
        group = ray.util.get_current_placement_group()
        count = self._told["gang"]["nodes"]
        root = str(Path(_session(), "logs"))
        here = ray.get_runtime_context().get_node_id()
        kind = ray.remote(_Placed)
        actors = []
        for index in range(count):
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
            options = {**self._told["actor"], "scheduling_strategy": strategy, "max_restarts": 0}
            actors.append(kind.options(**options).remote(root, self._told["gang"]["run"], self._name))
        places: list[Where] = self._all([actor.place.remote() for actor in actors], START, "start")
        order = sorted(range(count), key=lambda index: (places[index].host != here, places[index].host, index))
        self._nodes = [actors[index] for index in order]
        self._start([places[index] for index in order])

    def _start(self, places: Sequence[Where]) -> None:
        address, (port, http) = self._told["address"] or places[0].address, places[0].ports
        argv = list(self._told["gang"]["argv"])
        if self._told["own"]:
            argv += [f"--host={address}", f"--port={http}"]
        else:
            http = self._told["port"]
        self._address = f"{address}:{http}"
        gang = {**self._told["gang"], "coordinator": address, "port": port, "argv": argv}
        key = {KEY_VARIABLE: self._seat["key"]} if self._seat.get("key") else {}
        secret = secrets.token_hex(32)
        earlier = (self._seat["attempt"], self._seat["used"] - 1)  # they count the loss of it themselves
        ready = f"http://{self._address}{self._told['ready']}"
        told = [
            Told(node, gang, secret, key, earlier, ready if node == 0 else "", os.getpid())
            for node in range(len(places))
        ]
        starts = [node.start.remote(one) for node, one in zip(self._nodes, told, strict=True)]
        self._all(starts, START, "start its agent")

    def _follow(self) -> None:
        """Until it is told to end (returns), it gave up (raises GaveUp), or something is lost (raises Broken)."""
        while not self._stopping:
            beats = self._all([node.beat.remote() for node in self._nodes], SILENCE, "answer")
            self._hear(beats)
            judge(beats)
            time.sleep(BEAT)
        self._all([node.stop.remote() for node in self._nodes], SILENCE, "end")
        until = time.monotonic() + self._told["gang"]["grace"] + SLACK
        while time.monotonic() < until:
            beats = self._all([node.beat.remote() for node in self._nodes], SILENCE, "answer")
            self._hear(beats)
            if all(beat["code"] is not None for beat in beats):
                return
            time.sleep(BEAT)

    def _hear(self, beats: Sequence[dict[str, Any]]) -> None:
        lines = [line for beat in beats for line in beat["lines"]]
        if beats[0]["status"] is not None:
            self._last = beats[0]["status"]
        if beats[0]["ready"] and not self._began:
            self._began = True
            self._ready.set()
        self._tell(lines=lines, ready=beats[0]["ready"])

    # ---- words

    def _all(self, asked: Sequence[Any], timeout: float, what: str) -> list[Any]:
        """Every node's answer. Raises Broken, naming the node that is gone or silent."""
        until = time.monotonic() + timeout
        missing = list(asked)
        while missing and time.monotonic() < until:
            _, missing = ray.wait(missing, num_returns=len(missing), timeout=BEAT)
            if missing:
                self._tell()
        if missing:
            silent = ", ".join(str(number) for number, one in enumerate(asked) if one in missing)
            raise Broken(f"node {silent}: its actor did not {what} within {timeout:g} s")
        return [_answer(number, one) for number, one in enumerate(asked)]

    def _tell(self, lines: Sequence[Any] = (), **news: Any) -> None:
        """Have the door hear of it soon. While it is being started again nobody answers there; the nodes go on."""
        with self._lock:
            self._lines = [*self._lines, *lines][-MOST_LINES:]
            self._news |= news
        self._more.set()

    def _keep_telling(self) -> None:
        while True:
            self._more.wait()
            self._more.clear()
            self._send()

    def _send(self, **last: Any) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
        report = {"seat": self._seat, "status": self._last, "address": self._address, "lines": lines}
        try:
            self._door.report.remote(self._name, {**report, **self._news, **last}).result(timeout_s=TELL)
        except Exception as error:  # noqa: BLE001 - it is told again
            print(f"allranks: the door does not hear: {said(error)}", flush=True)
            with self._lock:
                self._lines = [*lines, *self._lines][-MOST_LINES:]

    def _die(self, reason: str) -> None:
        """End, and with this process everything that it owns; Serve makes another."""
        print(f"allranks: {reason}", flush=True)
        if not self._stopping:
            self._send(lost=reason)
        os.kill(os.getpid(), signal.SIGKILL)

    def _drop(self) -> None:
        for node in self._nodes:
            _quietly(functools.partial(ray.kill, node))
        self._nodes = []


class _Placed(Node):
    """A node that knows its place in Ray."""

    def __init__(self, root: str, service: str, gang: str) -> None:
        super().__init__(folder_of(root, service, gang))

    def place(self) -> Where:
        here = ray.get_runtime_context().get_node_id()
        address = next(host["NodeManagerAddress"] for host in ray.nodes() if host["NodeID"] == here)
        return self.where(here, address)


def _answer(node: int, asked: Any) -> Any:
    try:
        return ray.get(asked)
    except ray.exceptions.RayActorError as error:
        raise Broken(f"node {node}: its actor is gone: {first_line(error)}") from error


def _session() -> str:
    """Ray's own folder for this session on this host: what is below its ``logs`` shows on Ray's dashboard."""
    return str(ray._private.worker.global_worker.node.get_session_dir_path())


def _quietly(call: Callable[[], Any]) -> None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - it is said again, or there is nobody left to hear it
        print(f"allranks: {said(error)}", flush=True)
