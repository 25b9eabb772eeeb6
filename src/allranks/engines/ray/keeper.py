"""The process on this machine that keeps a service on Ray: starts it, writes down how it does, and takes it down.

It holds the lock of the run's directory for as long as it lives. A driver below it speaks to Ray; where no cluster was
named that starts one, whose processes the kernel ends with it. When such a cluster is lost, all gangs are: they start
again on a new one, while restarts are left. Like the local engine's supervisor the keeper ends the service when its
lifeline closes without a word: the command line has died.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from allranks.engines.ray import lines
from allranks.engines.ray.rundir import RunDir
from allranks.engines.ray.seats import Seat
from allranks.errors import EngineError
from allranks.node import processes
from allranks.node.cancel import read_cancel
from allranks.node.cause import utc
from allranks.node.files import say, write_whole
from allranks.node.init import take_lock
from allranks.node.status import Status

POLL = 0.3
START = 300.0
"""Seconds for Ray and Serve to be there."""
SILENT = 30.0
"""Seconds without a word of the driver, once the service was there: Ray's library waits long for a stopped head."""
LOST = 120.0
"""The same on a cluster of somebody's: whoever keeps that may replace its head meanwhile."""
SLACK = 40.0
"""Seconds that Serve and Ray may take to end beyond the gangs' grace."""
UNAVAILABLE = 69
ROOM = 64 * 2**20
"""Bytes for what Ray's processes write down."""
MOST_BYTES = 21
"""Of the name of the folder for temporary files."""


class Keeper:
    """One service. ``run`` returns when it is over."""

    def __init__(self, run: RunDir, lifeline: int | None) -> None:
        self._run, self._lifeline = run, lifeline
        self._plan = json.loads(run.plan.read_bytes())
        (application,) = self._plan["config"]["applications"]
        self._told = application["args"]
        gang = self._told["gang"]
        address = self._plan["address"]
        awaited = f"the Ray cluster at {address} is being reached" if address else "a Ray cluster is being started"
        self.status = Status(run.name, "ray", "pending", awaited, started=utc())
        self.status.world_size = gang["nodes"] * gang["ranks_per_node"] * self._told["replicas"]
        self.status.restarts["allowed"] = gang["restarts"]
        self._left: list[dict[str, Any]] = []
        self._scratch = ""
        self._is_there = False
        self._asked = ""
        self._unkept = 0
        self._said: set[str] = set()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._ask("told"))
        processes.become_subreaper()  # what Ray's processes leave behind is then ours to end

    def _ask(self, why: str) -> None:
        self._asked = self._asked or why

    def end_orphan(self) -> None:
        """Take down what a keeper before this one, which was killed, has left behind."""
        self.status = Status.from_json(json.loads(self._run.record.read_bytes()))
        if self._run.scratch.exists():
            self._scratch = self._run.scratch.read_text()
            _end_users_of(self._scratch)
        elif self._plan["address"]:
            _Driver(self._plan, ends=True).must_end_well(self._told["gang"]["grace"] + SLACK)
        self._asked = "told"
        self._finish()

    def run(self) -> None:
        """From the first process to the last one's end."""
        write_whole(str(self._run.record), json.dumps(self.status.to_json()))  # which is awaited: it must be there
        try:
            while not self._asked and not self.status.is_over:
                self._live()
        except Exception as error:  # noqa: BLE001 - the last rim: somebody waits for the record
            said = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
            self.status.end("failed", said, UNAVAILABLE)
        self._finish()

    def _finish(self) -> None:
        if self._asked and not self.status.is_over:
            reason, code = read_cancel(str(self._run.path)) if self._asked == "told" else (self._asked, 143)
            self.status.end("cancelled", reason, code)
        self._clear()
        self._nobody_runs("cancelled" if self.status.phase == "cancelled" else "failed")
        self.status.ended = utc()
        self._write()

    # ---- one driver's life

    def _live(self) -> None:
        """Have the service on a cluster until it is over, or that is lost."""
        if not self._plan["address"]:
            self._scratch = tempfile.mkdtemp(prefix="allranks-ray-", dir=roomy(short(tempfile.gettempdir())))
            self._run.scratch.write_text(self._scratch)
        driver = _Driver(self._plan, scratch=self._scratch, left=self._left)
        self._is_there = False
        lost = self._follow(driver)
        if not lost:
            driver.end(self._told["gang"]["grace"] + SLACK)
            return
        self._nobody_runs("failed")
        self._write()  # before what can take seconds
        self._clear()
        self._lose(lost, driver.is_unfit)

    def _follow(self, driver: _Driver) -> str:
        """Until the service is to end (an empty text), or its driver ends or is silent: why."""
        heard = time.monotonic()
        while not self._asked and not self.status.is_over:
            self._hear_lifeline(driver)
            for word in driver.words():
                heard = time.monotonic()
                if "state" in word:
                    self._take(word["state"])
                self.status.reason = word.get("reason", self.status.reason)
            self._write()
            if driver.lost:
                return driver.lost
            limit = (LOST if self._plan["address"] else SILENT) if self._is_there else START
            if time.monotonic() - heard > limit:
                return f"Ray has not answered for {limit:g} s"
        return ""

    def _take(self, state: dict[str, Any]) -> None:
        started = self.status.started
        self.status = Status.from_json(state["status"])
        self.status.started = started
        self._left, self._is_there = state["left"], True
        self._unkept += state["lost"]
        lost = [lines.lost(self._unkept, self.status.attempt)] if self._unkept else []
        try:
            if lost or state["lines"]:
                self._run.keep([*lost, *state["lines"]], self._told["gang"]["log_limit"])
            self._unkept = 0
        except OSError as error:
            self._unkept += len(state["lines"])
            self._tell_once(f"lines of its ranks cannot be written: {error}")

    def _lose(self, why: str, is_unfit: bool) -> None:
        """Every gang that was there is gone with the cluster, which is one restart; end where none is left.

        A cluster that never was there has cost one too, but ends the service if there was none before it.
        """
        if not self._left:
            more = "" if is_unfit else f"; what Ray said: {self._run.path / 'keeper.log'}"
            self.status.end("failed", f"{why}{more}", UNAVAILABLE)
            return
        seats = [Seat(number, **left) for number, left in enumerate(self._left)]
        for seat in seats:
            if seat.gang or not self._is_there:
                seat.vacate(why)
        self._left = [seat.left() for seat in seats]
        self.status.phase, self.status.reason = "restarting", why
        if all(seat.used > self.status.restarts["allowed"] for seat in seats):
            self.status.end("failed", f"{why}; no restart is left of {self.status.restarts['allowed']}", 1)

    def _hear_lifeline(self, driver: _Driver) -> None:
        ends = [end for end in (driver.pipe, self._lifeline) if end is not None]
        readable, _, _ = select.select(ends, [], [], POLL)
        if self._lifeline is not None and self._lifeline in readable:
            if not os.read(self._lifeline, 1):
                self._ask("the command line that had started it went away")
            os.close(self._lifeline)
            self._lifeline = None

    # ---- down

    def _nobody_runs(self, phase: str) -> None:
        for node in self.status.nodes:
            node.phase = phase
            for rank in node.ranks:
                rank.state, rank.pid = "ended", None

    def _clear(self) -> None:
        """End what is left of the driver and of a cluster of our own, and keep what it has written."""
        processes.kill_descendants(os.getpid())
        processes.reap_orphans()
        if self._scratch:
            self._save_logs()
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = ""

    def _save_logs(self) -> None:
        """What Serve and the agents have written, before its folder goes; where there is no room for it, nothing."""
        kept = self._run.path / "ray"
        for kind in ("serve", "allranks"):
            found = Path(self._scratch, "session_latest", "logs", kind)
            try:
                if found.is_dir():
                    shutil.copytree(found, kept / kind, dirs_exist_ok=True, ignore_dangling_symlinks=True)
            except OSError as error:
                shutil.rmtree(kept, ignore_errors=True)  # the record needs the room
                self._tell_once(f"what Ray has written is not kept: {error!s:.200}")

    def _write(self) -> None:
        """What cannot be written now is written once it can be: the service has no part in a full disk."""
        try:
            write_whole(str(self._run.record), json.dumps(self.status.to_json()))
        except OSError as error:
            self._tell_once(f"the record cannot be written: {error}")

    def _tell_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            say(f"allranks: {line}")


def short(folder: str) -> str:
    """Where sockets of Ray's can be below it, that folder; the kernel takes paths of 107 bytes, and Ray adds 86."""
    return folder if len(os.fsencode(folder)) <= MOST_BYTES else "/tmp"


def roomy(folder: str) -> str:
    """That folder. Raises EngineError where it has no room for a cluster's files: Ray would wait for what it lacks."""
    free = shutil.disk_usage(folder).free
    if free < ROOM:
        raise EngineError(
            f"{folder}, the folder for temporary files, has {free // 2**20} MiB free, and a Ray cluster needs "
            f"{ROOM // 2**20} MiB; make room there, or name another one: TMPDIR"
        )
    return folder


class _Driver:
    """A driver's process, and its words."""

    def __init__(self, plan: dict[str, Any], **task: Any) -> None:
        self.lost, self.is_unfit = "", False
        self.pipe, theirs = os.pipe()
        self._begun = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "allranks.engines.ray.driver", str(theirs)], stdin=subprocess.PIPE,
            pass_fds=(theirs,), env=os.environ if plan["address"] else with_token(os.environ),
            preexec_fn=functools.partial(processes.die_with_parent, signal.SIGKILL),
        )  # fmt: skip
        os.close(theirs)
        os.set_blocking(self.pipe, False)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as told:  # that it ended is told by its pipe
            told.write(json.dumps({**plan, **task}).encode())

    def words(self) -> Iterator[dict[str, Any]]:
        """Those that have come. ``lost`` is set once there will be no more."""
        try:
            data = os.read(self.pipe, 2**20)
        except BlockingIOError:
            return
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            word = json.loads(line)
            self.is_unfit = "unfit" in word
            self.lost = word.get("lost") or word.get("failed") or word.get("unfit") or self.lost
            yield word
        if not data:
            self.lost = self.lost or f"the process that speaks to Ray ended with {self._end_of(SLACK)}"

    def end(self, seconds: float) -> None:
        """Have it delete the service, for so long."""
        self._process.terminate()
        self._end_of(seconds)

    def must_end_well(self, seconds: float) -> None:
        """Wait for its end, so long. Raises ConnectionError where it goes on or has failed."""
        code = self._end_of(seconds)
        if code is None:
            raise ConnectionError(f"Ray has not deleted it within {seconds:g} s; is its cluster still there?")
        if code:
            raise ConnectionError(f"the process that speaks to Ray ended with {code}")

    def _end_of(self, seconds: float) -> int | None:
        """Wait for its end, so long; its exit code, None where it goes on."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


def with_token(env: Mapping[str, str]) -> dict[str, str]:
    """What asks for a token of a cluster's own: else Ray writes one for all of them to the home folder, if it can."""
    return {"RAY_AUTH_TOKEN": secrets.token_hex(32), **env}


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


def main(argv: list[str]) -> int:
    """``keeper DIR [--lifeline FD]``, or ``keeper DIR end`` after one that was killed."""
    run = RunDir(Path(argv[0]))
    if argv[1:] == ["end"]:
        take_lock(str(run.path))
        try:
            Keeper(run, None).end_orphan()
        except ConnectionError as error:
            print(f"allranks: {error}", file=sys.stderr)
            return UNAVAILABLE
        return 0
    lifeline = int(argv[2]) if argv[1:2] == ["--lifeline"] else None
    if lifeline is not None:
        fcntl.fcntl(lifeline, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    take_lock(str(run.path))
    Keeper(run, lifeline).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
