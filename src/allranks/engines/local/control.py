"""The engine local: gangs of processes of this machine, each under a supervisor of its own."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from allranks import node
from allranks.engines import child
from allranks.engines.engine import Kept, LogFilter, LogLine, Plan
from allranks.engines.local import commands, kept, logs
from allranks.engines.local.rundir import (
    Holder,
    RunDir,
    all_runs,
    exclusive,
    lock_holder,
    move_aside,
    runs_home,
    submit_lock,
    until,
    writing,
)
from allranks.engines.port import must_be_free
from allranks.errors import EngineError, no_run
from allranks.node.cancel import write_cancel
from allranks.node.environment import clean
from allranks.node.files import write_whole
from allranks.node.launch import door
from allranks.node.processes import start_time
from allranks.node.status import Status
from allranks.node.verdict import EXIT_CANTCREAT

if TYPE_CHECKING:
    from allranks.spec.job import Job
    from allranks.spec.service import Service

SUPERVISOR = Path(node.__file__).with_name("__main__.py")
"""By its path and not by -m, which would let modules of the current folder stand in for the standard library's."""

START_TIMEOUT = 10.0
"""Seconds a supervisor may take until the run has its first record; it needs a fifth of one."""

CANCEL_SLACK = 15.0
"""Seconds that a cancelled gang may take beyond its grace before its supervisor is killed, which ends all at once."""


class LocalRun(child.Child):
    """A gang whose supervisor is our child, and whose lifeline we hold."""

    def __init__(self, name: str, supervisor: subprocess.Popen[bytes], lifeline: int | None) -> None:
        super().__init__(supervisor, lifeline)
        self.name, self.lines = name, LogFilter(since=0)

    def status(self) -> Status:
        return find(self.name).status()

    def cancel(self, *, reason: str, code: int) -> None:
        ENGINE.cancel(self.name, reason=reason, code=code)


class LocalEngine:
    """Runs gangs on this machine, without anything to install."""

    name = "local"
    summary = "processes of this machine; needs nothing"

    def available(self) -> str:
        return "" if sys.platform == "linux" else f"it needs Linux, and this is {sys.platform}"

    def plan(self, job: Job, folder: Path) -> Plan:
        from allranks.engines.local import plan  # brings pydantic, which only a spec needs

        return plan.plan(job, folder)

    def plan_as(self, job: Job, folder: Path, other: str) -> Plan:
        from allranks.engines.local import plan

        return plan.plan(job, folder, other)

    def plan_service(self, service: Service, folder: Path) -> Plan:
        from allranks.engines.local import serving

        return serving.plan_service(service, folder)

    def submit(self, plan: Plan, *, detach: bool) -> LocalRun:
        run = RunDir(Path(plan.documents[0]["state"]))
        with writing(run.path), _alone():
            if holder := run.holder():
                raise child.is_alive(run.name, f"(pid {holder.pid})")
            if plan.address:
                where = urlsplit(plan.address)
                must_be_free(where.hostname or "", where.port or 0)
            if run.path.exists():
                move_aside(run)
            _lay_out(run, plan)
            supervisor, lifeline = _start(run, detach)
            try:
                _await_first_record(run, supervisor)
            except BaseException:
                _undo(run, supervisor)
                raise
        return LocalRun(run.name, supervisor, lifeline)

    def status(self, name: str) -> Status:
        return find(name).status()

    def list(self) -> Sequence[Status]:
        return [_listed(run) for run in all_runs()]

    def logs(self, name: str, wanted: LogFilter, *, follow: bool) -> Iterator[LogLine | None]:
        return logs.follow(find(name), wanted) if follow else logs.read(find(name), wanted)

    def tails(self, name: str, ranks: Collection[int]) -> Mapping[int, Sequence[str]]:
        return kept.tails(find(name), ranks)

    def kept(self, name: str) -> Kept:
        return kept.read(find(name))

    def up(self, plan: Plan) -> LocalRun:
        return self.submit(replace(plan, documents=({**plan.documents[0], "stays": True},)), detach=True)

    def exec(self, name: str, argv: Sequence[str], *, restarts: int) -> commands.Given:
        return commands.give(find(name), argv, restarts)

    def stop(self, name: str, *, reason: str, code: int = 143) -> Status:
        return commands.stop(find(name), reason, code)

    def shell(self, name: str, node: int) -> int:
        from allranks.engines.local.shell import serve

        return serve(find(name), node)

    def cancel(self, name: str, *, reason: str, code: int = 143) -> Status:
        run = find(name)
        until(lambda: run.holder() is not None or lock_holder(submit_lock()) is None, START_TIMEOUT)
        holder = run.holder()
        if holder:
            _end(run, holder, reason, code)
        return run.status()


ENGINE = LocalEngine()


_NAME = re.compile(r"[a-z][-a-z0-9]{0,39}(\.\d+)?")  # digits, or digits.2: the one before the one before


def find(name: str) -> RunDir:
    """The run of that name. Raises NotFound, naming the runs that exist."""
    run = RunDir(runs_home() / name)
    if _NAME.fullmatch(name) and run.plan.exists():
        return run
    raise no_run(name, [run.name for run in all_runs()])


def _listed(run: RunDir) -> Status:
    """One run with a broken record must not hide the others."""
    try:
        return run.status()
    except EngineError as error:
        return Status(run.name, "local", "failed", str(error))


# Submit


@contextmanager
def _alone() -> Iterator[None]:
    """Keep other submits out until this run has its supervisor.

    Nothing in here may open the lock's file again: closing it would let go of the lock (POSIX).
    """
    runs_home().mkdir(mode=0o700, parents=True, exist_ok=True)
    with exclusive(submit_lock(), timeout=2 * START_TIMEOUT):
        yield


def _lay_out(run: RunDir, plan: Plan) -> None:
    run.path.mkdir(mode=0o700)
    with _or_nothing(run):
        run.logs.mkdir()
        write_whole(str(run.path / "spec.yaml"), plan.spec)
        write_whole(str(run.path / "secret"), secrets.token_hex(32), mode=0o600)
        if plan.documents[0]["launcher"] == "mpirun":
            door.make_keys(str(run.path), os.environ.get("PATH", os.defpath))
        write_whole(str(run.plan), json.dumps(plan.documents[0], indent=1))


@contextmanager
def _or_nothing(run: RunDir) -> Iterator[None]:
    """Leave no directory of a run that never began."""
    try:
        yield
    except BaseException:
        shutil.rmtree(run.path, ignore_errors=True)
        raise


def _start(run: RunDir, detach: bool) -> tuple[subprocess.Popen[bytes], int | None]:
    """Start the supervisor in a session of its own. It ends the gang when our end of the lifeline closes unspoken."""
    with _or_nothing(run):
        command = [sys.executable, str(SUPERVISOR), "init", str(run.plan)]
        return child.start(command, run.logs / "init.log", clean(os.environ), detach=detach)


def _await_first_record(run: RunDir, supervisor: subprocess.Popen[bytes]) -> None:
    """Wait for the run's first record. A supervisor that ended before leaves its last words to the error."""
    record = run.path / "status.json"
    until(lambda: record.exists() or supervisor.poll() is not None, START_TIMEOUT)
    if record.exists() or run.holder():  # the latter: slow to start on a busy machine, but on its way
        return
    supervisor.kill()
    code = supervisor.wait()
    last_words = "\n".join(_last_words(run.logs)) or _nothing_said(run, code)
    shutil.rmtree(run.path, ignore_errors=True)
    raise EngineError(f"run {run.name} could not be started:\n{last_words}")


def _nothing_said(run: RunDir, code: int) -> str:
    said = f"its supervisor ended with {code}, and said nothing"
    if code != EXIT_CANTCREAT:
        return said
    left = shutil.disk_usage(run.path).free // 1024  # what it has to say it writes there too
    return f"{said}; {left} KiB are left for {run.path}: make room, or set XDG_STATE_HOME to a folder that has it"


def _undo(run: RunDir, supervisor: subprocess.Popen[bytes]) -> None:
    """End a run that was interrupted before its first record: who does that wants none."""
    supervisor.terminate()
    try:
        supervisor.wait(START_TIMEOUT)
    except subprocess.TimeoutExpired:
        supervisor.kill()
        supervisor.wait()
    shutil.rmtree(run.path, ignore_errors=True)


def _last_words(logs: Path) -> Iterator[str]:
    for log in [logs / "init.log", *sorted(logs.glob("agent-*.log"))[:1]]:
        try:
            yield from log.read_text(errors="replace").splitlines()[-10:]
        except FileNotFoundError:
            continue


# Cancel


def _end(run: RunDir, holder: Holder, reason: str, code: int) -> None:
    """Ask the supervisor to end the gang and wait until it has; kill it when it cannot, which ends all at once."""
    with writing(run.path):
        write_cancel(str(run.path), reason, code)
    grace = run.gang().grace
    for number, timeout in ((signal.SIGTERM, grace + CANCEL_SLACK), (signal.SIGKILL, CANCEL_SLACK)):
        _signal(holder, number)
        if until(lambda: run.holder() != holder, timeout):
            return
    raise EngineError(f"run {run.name}: its supervisor (pid {holder.pid}) does not end, even when killed")


def _signal(holder: Holder, number: signal.Signals) -> None:
    if start_time(holder.pid) != holder.start:
        return  # it has ended, and its pid may be another process by now
    try:
        os.kill(holder.pid, number)
        os.kill(holder.pid, signal.SIGCONT)  # a stopped process hears nothing else
    except ProcessLookupError:
        pass  # it has ended, as was wanted
