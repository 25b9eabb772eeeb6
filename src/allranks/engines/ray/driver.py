"""The process that speaks to Ray for a keeper: deploys the service, tells how it does, and deletes it when it is told.

A process of its own because Ray's library may hang, or end its process, when Ray's own processes do. What it is to do
is read from standard input (``Task``, as JSON); its words go to a pipe, a JSON object a line: ``reason`` while there is
no more to tell, the door's ``state``, and before it ends by itself ``lost``, ``failed`` or, where what is asked for
cannot be, ``unfit``. SIGTERM ends it and the service.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ray
from pydantic import ValidationError
from ray import serve
from ray.serve.schema import ServeDeploySchema

import allranks
from allranks.engines.ray import app
from allranks.engines.ray.said import said
from allranks.errors import first_line
from allranks.serving import key
from allranks.serving.folder import Unfit

POLL = 0.3
ANSWER = 3.0
"""Seconds for the door to tell its state."""
LOST = 60.0
"""Seconds without any word of the door or of Serve after which the cluster is given up for lost."""
LOCAL_OBJECTS = 100 * 2**20
"""Bytes of the object store of a cluster of our own: nothing is kept there but the actors' small words."""
NEEDED = {"raylet": "the raylet", "gcs_server": "the head (gcs_server)"}
"""Ray's processes without which there is no cluster, by its own name for them."""


class Task(NamedTuple):
    """What to do. ``config`` is the plan's Serve config, ``address`` the cluster's or empty for one of our own.

    That one's files go below ``scratch``. ``key`` is where the service's key is. ``left`` is what gangs before, lost
    with their cluster, have left for those to come. ``ends`` has the service deleted and nothing else.
    """

    config: dict[str, Any]
    address: str
    key: dict[str, str]
    scratch: str = ""
    left: tuple[dict[str, Any], ...] = ()
    ends: bool = False


class Driver:
    """One service on one cluster."""

    def __init__(self, task: Task, words: int) -> None:
        self._task, self._words = task, os.fdopen(words, "w")
        (self._app,) = task.config["applications"]
        self._told = {**self._app["args"], "left": task.left}
        self._since = 0
        self._asked, self._answered, self._ending = task.ends, False, False
        self._key = ""
        self._mouth = threading.Lock()
        self._listen()
        if not task.address:
            threading.Thread(target=self._watch, name="processes", daemon=True).start()

    def _listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(self, "_asked", True))

    def run(self) -> None:
        """Until it is told to end. Raises whatever Ray does, having said so."""
        try:
            if not self._task.ends:
                self._key = key.read(**self._task.key)
            self._config = checked(self._task.config)
            self._connect()
            self._listen()  # Ray has put its own handlers there
            if not self._asked:
                self._deploy()
            self._follow()
        except ConnectionError as error:
            self._say(lost=str(error))
            raise
        except Unfit as error:
            self._say(unfit=str(error))
            raise
        except Exception as error:
            self._say(failed=said(error))
            raise
        self._end()

    def _say(self, **word: Any) -> None:
        with self._mouth:
            self._words.write(json.dumps(word) + "\n")
            self._words.flush()

    def _watch(self) -> None:
        """End with this process once a cluster of our own has lost one that nobody but us would replace.

        Beside all else, as Ray's library waits for ever for what such a process was to do.
        """
        while True:
            node = ray._private.worker._global_node
            for kind, _ in node.dead_processes() if node is not None else ():
                if kind in NEEDED and not self._ending:
                    self._say(lost=f"{NEEDED[kind]} of its Ray cluster was lost")
                    os._exit(1)
            time.sleep(POLL)

    def _connect(self) -> None:
        quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False, "namespace": "allranks"}
        if self._task.address:
            code = str(Path(allranks.__file__).parent)
            try:
                ray.init(self._task.address, runtime_env={"py_modules": [code]}, **quiet)
            except ConnectionError as error:
                raise ConnectionError(unreached(self._task.address, error)) from error
            return
        gangs = self._told["gangs"]
        cpus = 1 + sum(bundle["CPU"] for bundle in gangs["placement_group_bundles"]) * self._told["replicas"]
        ray.init(
            num_cpus=max(os.cpu_count() or 1, int(cpus + 1)), include_dashboard=False,
            object_store_memory=LOCAL_OBJECTS, _temp_dir=self._task.scratch, **quiet,
        )  # fmt: skip
        must_fit(gangs["placement_group_bundles"] * self._told["replicas"], ray.cluster_resources())

    def _deploy(self) -> None:
        """Whatever of it is there: a cluster that outlived the driver before has all of it."""
        self._say(reason="Ray Serve is being started")
        serve.start(proxy_location=self._config.proxy_location, http_options=self._task.config["http_options"])
        if self._asked or (self._task.left and self._app["name"] in serve.status().applications):
            return
        target = serve.RunTarget(app.build(self._told), name=self._app["name"], route_prefix=self._app["route_prefix"])
        serve.run_many([target], wait_for_applications_running=False)

    def _follow(self) -> None:
        heard = time.monotonic()
        while not self._asked:
            self._must_be_whole()
            try:
                word: dict[str, Any] = {"state": self._look()}
                heard = time.monotonic()
            except Exception as error:
                said = self._serves_word()
                if not said and time.monotonic() - heard > LOST:
                    raise ConnectionError(f"the Ray cluster has not answered for {LOST:g} s") from error
                word = {"reason": said or "the door of the service does not answer yet"}
            self._say(**word)
            time.sleep(POLL)  # a signal ends it

    def _must_be_whole(self) -> None:
        """Raises ConnectionError where a cluster of our own has no node that answers."""
        if not self._task.address and not any(node["Alive"] for node in ray.nodes()):
            raise ConnectionError("the raylet of its Ray cluster does not answer")

    def _look(self) -> dict[str, Any]:
        handle = serve.get_deployment_handle("door", self._app["name"])
        state: dict[str, Any] = handle.state.remote(self._since).result(timeout_s=ANSWER)
        if state["wants_key"]:
            handle.give_key.remote(self._key).result(timeout_s=ANSWER)
        if not state["placed"] and (word := self._serves_word()):
            state["status"]["reason"] = word
        self._since, self._answered = state["next"], True
        return state

    def _serves_word(self) -> str:
        """Why the service is not placed, as Serve says it; empty where it says nothing."""
        try:
            found = serve.status().applications.get(self._app["name"])
        except Exception:  # noqa: BLE001 - it cannot be asked, which is all that counts here
            return ""
        if found is None:
            return ""
        said = [one.message for one in found.deployments.values() if one.message] + [found.message]
        return next((line.splitlines()[0] for line in said if line), "")

    def _end(self) -> None:
        """Delete the application, and Serve with a cluster of our own."""
        if self._answered or self._task.ends:
            with contextlib.suppress(Exception):  # a door that is gone has no requests to tell
                serve.get_deployment_handle("door", self._app["name"]).end.remote().result(timeout_s=ANSWER)
        serve.delete(self._app["name"])
        if not self._task.address:
            serve.shutdown()
        self._ending = True
        ray.shutdown()


def unreached(address: str, error: ConnectionError) -> str:
    wants = "InvalidAuthToken" in str(error.__cause__)  # Ray's own word is that it failed to connect
    token = "; it asks for a token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN unless it is in ~/.ray/auth_token"
    return f"the Ray cluster at {address} cannot be reached: {first_line(error)}{token if wants else ''}"


def checked(config: dict[str, Any]) -> ServeDeploySchema:
    """What Serve makes of a config. Raises Unfit."""
    try:
        return ServeDeploySchema.model_validate(config)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise Unfit(f"engines.ray.manifest: {where}: {first['msg']}; found {first['input']!r:.100}") from error


def must_fit(bundles: Sequence[Mapping[str, float]], there: Mapping[str, float]) -> None:
    """Raises Unfit where a cluster that nobody enlarges has not what the nodes of all gangs take of it."""
    for name in sorted({name for bundle in bundles for name in bundle}):
        wanted, found = sum(bundle.get(name, 0) for bundle in bundles), there.get(name, 0)
        if wanted > found:
            raise Unfit(
                f"resources: the service takes {wanted:g} {name} and Ray finds {found:g} on this machine; "
                "take less, or name a cluster that has it: engines.ray.address"
            )


if __name__ == "__main__":
    Driver(Task(**json.load(sys.stdin)), int(sys.argv[1])).run()
