"""The process on this machine that keeps a service on Ray: starts it, writes down how it does, and takes it down.

It holds the lock of the run's directory for as long as it lives. Where no Ray cluster was named it also holds one,
whose processes the kernel ends with it. Like the local engine's supervisor it ends the service when its lifeline closes
without a word: the command line has died.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.schema import ServeDeploySchema

import allranks
from allranks.engines.ray import app
from allranks.engines.ray.rundir import RunDir
from allranks.node import processes
from allranks.node.cancel import read_cancel
from allranks.node.cause import utc
from allranks.node.files import write_whole
from allranks.node.init import take_lock
from allranks.node.status import Status

POLL = 0.3
ANSWER = 3.0
"""Seconds for the door to tell its state."""
LOST = 60.0
"""Seconds without any word of the door or of Serve after which the cluster is given up for lost."""
LOCAL_OBJECTS = 100 * 2**20
"""Bytes of the object store of a cluster of our own: nothing is kept there but the actors' small words."""


class Keeper:
    """One service. ``run`` returns when it is over."""

    def __init__(self, run: RunDir, lifeline: int | None) -> None:
        self._run, self._lifeline = run, lifeline
        self._plan = json.loads(run.plan.read_bytes())
        (self._app,) = self._plan["config"]["applications"]
        self._told = self._app["args"]
        gang = self._told["gang"]
        self.status = Status(run.name, "ray", "pending", "a Ray cluster is being started", started=utc())
        self.status.world_size = gang["nodes"] * gang["ranks_per_node"] * self._told["replicas"]
        self.status.restarts["allowed"] = gang["restarts"]
        self._scratch = ""
        self._since = 0
        self._asked = ""
        self._listen()

    def _listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._ask("told"))

    def _ask(self, why: str) -> None:
        self._asked = self._asked or why

    def end_orphan(self) -> None:
        """Take down what a keeper before this one, which was killed, has left behind."""
        self.status = Status.from_json(json.loads(self._run.record.read_bytes()))
        if self._run.scratch.exists():
            self._scratch = self._run.scratch.read_text()
        elif self._plan["address"]:
            self._connect()
        self._asked = "told"
        self._take_down()
        self.status.ended = utc()
        self._write()

    def run(self) -> None:
        """From the first process to the last one's end."""
        self._write()
        try:
            self._connect()
            self._listen()  # Ray has put its own handlers there
            self._deploy()
            self._follow()
        except Exception as error:  # noqa: BLE001 - the last rim: somebody waits for the record
            self.status.end("failed", f"{type(error).__name__}: {str(error).strip().splitlines()[0]}", 69)
        finally:
            self._take_down()
        self.status.ended = utc()
        self._write()

    # ---- up

    def _connect(self) -> None:
        quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False, "namespace": "allranks"}
        address = self._plan["address"]
        if address:
            code = str(Path(allranks.__file__).parent)
            ray.init(address, runtime_env={"py_modules": [code]}, **quiet)
            return
        self._scratch = tempfile.mkdtemp(prefix="allranks-ray-")  # short: sockets are below it
        self._run.scratch.write_text(self._scratch)
        gangs = self._told["gangs"]
        cpus = 1 + sum(bundle["CPU"] for bundle in gangs["placement_group_bundles"]) * self._told["replicas"]
        ray.init(
            num_cpus=max(os.cpu_count() or 1, int(cpus + 1)), include_dashboard=False,
            object_store_memory=LOCAL_OBJECTS, _temp_dir=self._scratch, **quiet,
        )  # fmt: skip

    def _deploy(self) -> None:
        self.status.reason = "Ray Serve is being started"
        self._write()
        config = ServeDeploySchema.model_validate(self._plan["config"])
        serve.start(proxy_location=config.proxy_location, http_options=self._plan["config"]["http_options"])
        target = serve.RunTarget(app.build(self._told), name=self._app["name"], route_prefix=self._app["route_prefix"])
        serve.run_many([target], wait_for_applications_running=False)

    # ---- while it runs

    def _follow(self) -> None:
        heard = time.monotonic()
        while not self._asked and not self.status.is_over:
            try:
                self._look()
                heard = time.monotonic()
            except Exception as error:
                self.status.reason = self._serves_word() or "the door of the service does not answer yet"
                if not self._serves_word() and time.monotonic() - heard > LOST:
                    raise ConnectionError(f"the Ray cluster has not answered for {LOST:g} s") from error
            self._write()
            self._hear_lifeline(POLL)

    def _look(self) -> None:
        handle = serve.get_deployment_handle("door", self._app["name"])
        state = handle.state.remote(self._since).result(timeout_s=ANSWER)
        if state["wants_key"]:
            handle.give_key.remote(_key(self._plan["key"])).result(timeout_s=ANSWER)
        started = self.status.started
        self.status = Status.from_json(state["status"])
        self.status.started = started
        if not state["placed"] and (word := self._serves_word()):
            self.status.reason = word
        self._keep_lines(state)

    def _keep_lines(self, state: dict[str, Any]) -> None:
        self._since = state["next"]
        with self._run.lines.open("a", encoding="utf-8") as file:
            if state["lost"]:
                lost = f"allranks: {state['lost']:,} lines were not taken in time; they are on Ray's hosts"
                file.write(json.dumps([0, -1, 0, None, lost]) + "\n")
            file.writelines(json.dumps(line) + "\n" for line in state["lines"])

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

    def _hear_lifeline(self, seconds: float) -> None:
        import select

        if self._lifeline is None:
            time.sleep(seconds)  # a signal ends it
            return
        readable, _, _ = select.select([self._lifeline], [], [], seconds)
        if readable:
            if not os.read(self._lifeline, 1):
                self._ask("the command line that had started it went away")
            os.close(self._lifeline)
            self._lifeline = None

    # ---- down

    def _take_down(self) -> None:
        """Delete the application, and all of a cluster of our own."""
        if self._asked and not self.status.is_over:
            reason, code = read_cancel(str(self._run.path)) if self._asked == "told" else (self._asked, 143)
            self.status.end("cancelled", reason, code)
        try:
            if ray.is_initialized():
                serve.delete(self._app["name"])
                if self._scratch:
                    serve.shutdown()
        except Exception as error:  # noqa: BLE001 - a cluster that is gone has nothing to delete
            print(f"cannot delete the application: {error}", flush=True)
        for node in self.status.nodes:
            node.phase = "cancelled" if self.status.phase == "cancelled" else "failed"
            for rank in node.ranks:
                rank.state, rank.pid = "ended", None
        ray.shutdown()
        if self._scratch:
            _end_users_of(self._scratch)
            self._save_logs()
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _save_logs(self) -> None:
        """What Serve and the agents of a cluster of our own have written, before its folder goes."""
        for kind in ("serve", "allranks"):
            found = Path(self._scratch, "session_latest", "logs", kind)
            if found.is_dir():
                shutil.copytree(found, self._run.path / "ray" / kind, dirs_exist_ok=True, ignore_dangling_symlinks=True)

    def _write(self) -> None:
        write_whole(str(self._run.record), json.dumps(self.status.to_json()))


def _end_users_of(folder: str) -> None:
    """Kill what still has files of a cluster of ours open: Ray's agents outlive a raylet that was killed."""
    for process in processes.running():
        if any(path.startswith(f"{folder}/") for path in _open_files(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def _open_files(pid: int) -> Iterator[str]:
    if pid == os.getpid():
        return
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            yield os.readlink(entry.path)


def _key(source: dict[str, str]) -> str:
    """The service's key: from a variable of ours, or from a file."""
    if source.get("env"):
        return os.environ.get(source["env"], "").strip()
    return Path(source["file"]).read_text(encoding="utf-8").strip()


def main(argv: list[str]) -> int:
    """``keeper DIR [LIFELINE-FD]``, or ``keeper DIR end`` after one that was killed."""
    run = RunDir(Path(argv[0]))
    if argv[1:] == ["end"]:
        take_lock(str(run.path))
        Keeper(run, None).end_orphan()
        return 0
    lifeline = int(argv[1]) if argv[1:] else None
    if lifeline is not None:
        fcntl.fcntl(lifeline, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    take_lock(str(run.path))
    Keeper(run, lifeline).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
