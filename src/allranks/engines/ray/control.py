"""The engine ray: services on a Ray cluster, kept by a process of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.engines import child
from allranks.engines.engine import OURS, LogFilter, LogLine, Plan
from allranks.engines.kubernetes import client as api
from allranks.engines.local.rundir import Holder, until, writing
from allranks.engines.port import must_be_free
from allranks.engines.ray import lines
from allranks.engines.ray.addresses import must_be_there
from allranks.engines.ray.rundir import RunDir, all_runs, clear, home
from allranks.errors import EngineError, NotFound, SpecError, UsageError
from allranks.node.cancel import write_cancel
from allranks.node.environment import clean
from allranks.node.files import write_whole
from allranks.node.processes import start_time
from allranks.node.status import Status
from allranks.serving import probe
from allranks.serving.folder import Unfit
from allranks.serving.key import read as read_key

if TYPE_CHECKING:
    from allranks.engines.ray.rayservice import RayServiceRun, RayServices
    from allranks.spec.job import Job
    from allranks.spec.service import Service

SLACK = 60.0
"""Seconds that a cancelled service may take beyond its grace: Serve and Ray take their time to end."""
FIRST_RECORD = 20.0
"""Seconds for a keeper to have written down that it is there."""
POLL = 0.2
TAIL = 50
"""Lines of a rank that are its last ones."""
KEEPER_GONE = 70
MISSING = "Ray is not installed; install: pip install 'allranks[ray]'"


class RayRun(child.Child):
    """A service whose keeper is our child, and whose lifeline we hold."""

    def __init__(self, run: RunDir, keeper: subprocess.Popen[bytes], lifeline: int | None) -> None:
        super().__init__(keeper, lifeline)
        self.name, self.lines = run.name, LogFilter(since=0)
        self._run = run

    def status(self) -> Status:
        gone = self._process.poll() is not None  # asked first, as the record's last word comes before
        status = self._run.status()
        if gone and not status.is_over:
            status.end("failed", status.reason, KEEPER_GONE)
        return status

    def cancel(self, *, reason: str, code: int) -> None:
        ENGINE.cancel(self.name, reason=reason, code=code)


class RayEngine:
    """Runs services on Ray Serve."""

    name = "ray"
    summary = "Ray Serve, for services; on a Ray cluster, one that it starts here, or KubeRay's"

    def available(self) -> str:
        return "" if find_spec("ray") or not api.why_not() else MISSING

    def plan(self, job: Job, folder: Path) -> Plan:
        others = "local, mpijob, trainjob, pytorchjob, jobset, runai"
        raise SpecError(f"{job.name} is a kind: Job; engine ray runs a kind: Service; for a job: {others}")

    def plan_service(self, service: Service, folder: Path) -> Plan:
        from allranks.engines.ray import plan  # brings pydantic, which only a spec needs

        return plan.plan_service(service, folder)

    def check(self, plan: Plan) -> Sequence[str]:
        """Have the API server judge a RayService; a Serve config has nobody to ask before there is a cluster."""
        if "applications" in plan.documents[0]:
            raise EngineError("a Serve config has nobody to check it; a RayService has (engines.ray.kuberay: true)")
        return _cluster().check(plan)

    def role(self, *, force_delete: bool = False) -> dict[str, Any]:
        return _cluster().role()

    def submit(self, plan: Plan, *, detach: bool) -> RayRun | RayServiceRun:
        (document,) = plan.documents
        run = RunDir(home() / plan.name)
        _must_be_over(run)
        if "applications" not in document:
            clear(run)
            return _cluster().submit(plan, detach=detach)
        if not find_spec("ray"):
            raise EngineError(MISSING)
        told = {"config": document, **_where(plan)}
        with writing(run.path):
            clear(run)
            run.path.mkdir(mode=0o700, parents=True)
            write_whole(str(run.path / "spec.yaml"), plan.spec)
            write_whole(str(run.plan), json.dumps(told))
            keeper, lifeline = _start(run, detach)
        if not until(lambda: run.record.exists() or keeper.poll() is not None, FIRST_RECORD) or not run.record.exists():
            keeper.kill()
            keeper.wait()
            raise EngineError(f"service {run.name} could not be started:\n" + "\n".join(_last_words(run)))
        return RayRun(run, keeper, lifeline)

    def status(self, name: str) -> Status:
        return _cluster().status(name) if _is_elsewhere(name) else find(name).status()

    def list(self) -> Sequence[Status]:
        return [*(run.status() for run in all_runs()), *_in_cluster()]

    def answers(self, plan: Plan) -> bool:
        (document,) = plan.documents
        if "applications" not in document:
            return _cluster().answers(plan)
        (application,) = document["applications"]
        return probe.answers(plan.address + application["args"]["ready"])

    def cancel(self, name: str, *, reason: str, code: int = 143) -> Status:
        if _is_elsewhere(name):
            return _cluster().cancel(name, reason=reason, code=code)
        run = find(name)
        keeper = run.keeper()
        if keeper:
            write_cancel(str(run.path), reason, code)
            _end(run, keeper)
        elif run.is_orphan():
            write_cancel(str(run.path), reason, code)
            _end_orphan(run)
        return run.status()

    def logs(self, name: str, wanted: LogFilter, *, follow: bool) -> Iterator[LogLine | None]:
        if wanted.after is not None:
            raise UsageError("--since: lines that come by Ray have no times; choose by --attempt, --rank, --node")
        if _is_elsewhere(name):
            return _cluster().logs(name, wanted, follow=follow)
        return _follow(find(name), wanted) if follow else _read(find(name), wanted)

    def tails(self, name: str, ranks: Collection[int]) -> Mapping[int, Sequence[str]]:
        found: dict[int, deque[str]] = {}
        for line in _read(find(name), LogFilter(ranks=frozenset(ranks))):
            if line.rank is not None:
                found.setdefault(line.rank, deque(maxlen=TAIL)).append(line.text)
        return {rank: list(newest) for rank, newest in found.items()}


ENGINE = RayEngine()


def _cluster() -> RayServices:
    from allranks.engines.ray import rayservice

    return rayservice.ENGINE


def _is_elsewhere(name: str) -> bool:
    """Whether only a cluster may have it."""
    return name not in {run.name for run in all_runs()} and not api.why_not()


def _in_cluster() -> Sequence[Status]:
    """Those that KubeRay runs. Where the cluster cannot be asked, the engines that are only there say so."""
    try:
        return [] if api.why_not() else _cluster().list()
    except EngineError:
        return []


def find(name: str) -> RunDir:
    """The run of that name. Raises NotFound, naming those that exist."""
    runs = {run.name: run for run in all_runs()}
    if name in runs:
        return runs[name]
    near = get_close_matches(name, runs, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise NotFound(f"no service named {name} on Ray{hint}")


# Start and end


def _must_be_over(run: RunDir) -> None:
    if keeper := run.keeper():
        raise child.is_alive(run.name, f"(pid {keeper.pid})")


def _where(plan: Plan) -> dict[str, Any]:
    """What the keeper must know beside the plan: the cluster, and where the key is; never the key."""
    from allranks.engines.ray.plan import cluster
    from allranks.spec.load import parse
    from allranks.spec.service import Service

    service = parse(plan.spec, "the plan's spec")
    assert isinstance(service, Service)  # plan_service made it
    address = cluster(service)
    if address:
        must_be_there(address)
    else:
        options = plan.documents[0]["http_options"]
        must_be_free(options["host"], options["port"])
    key = service.api_key
    source = key.model_dump(exclude_none=True) if key is not None else {}
    try:
        read_key(**source)
    except Unfit as error:
        raise SpecError(str(error)) from error
    return {"address": address, "key": source}


def _start(run: RunDir, detach: bool) -> tuple[subprocess.Popen[bytes], int | None]:
    """Start the keeper in a session of its own. It ends the service when our end of the lifeline closes unspoken."""
    return child.start(_keeper(run), run.path / "keeper.log", _environment(), detach=detach)


def _keeper(run: RunDir) -> list[str]:
    return [sys.executable, "-m", "allranks.engines.ray.keeper", str(run.path)]


def _environment() -> dict[str, str]:
    """A keeper's: the cluster is named in its plan, and nothing is told to Ray's makers."""
    from allranks.engines.ray.plan import SERVE_ENV

    env = {**SERVE_ENV, **clean(os.environ), "RAY_USAGE_STATS_ENABLED": "0", "PYTHONSAFEPATH": "1"}
    env.pop("RAY_ADDRESS", None)
    return env


def _last_words(run: RunDir) -> list[str]:
    try:
        return (run.path / "keeper.log").read_text(errors="replace").splitlines()[-10:]
    except OSError:
        return ["its keeper said nothing"]


def _end(run: RunDir, keeper: Holder) -> None:
    """Ask the keeper to end the service and wait until it has; kill it when it cannot: its own cluster ends then."""
    for number, timeout in ((signal.SIGTERM, _grace(run) + SLACK), (signal.SIGKILL, SLACK)):
        if start_time(keeper.pid) == keeper.start:
            os.kill(keeper.pid, number)
        if until(lambda: run.keeper() != keeper, timeout):
            return
    raise EngineError(f"service {run.name}: its keeper (pid {keeper.pid}) does not end, even when killed")


def _grace(run: RunDir) -> float:
    return float(json.loads(run.plan.read_bytes())["config"]["applications"][0]["args"]["gang"]["grace"])


def _end_orphan(run: RunDir) -> None:
    keeper, _ = child.start([*_keeper(run), "end"], run.path / "keeper.log", _environment(), detach=True)
    try:
        code = keeper.wait(_grace(run) + SLACK)
    except subprocess.TimeoutExpired:
        keeper.kill()
        code = keeper.wait()
    if code:
        raise EngineError(f"service {run.name} cannot be ended:\n" + "\n".join(_last_words(run)))


# Lines


def _read(run: RunDir, wanted: LogFilter) -> Iterator[LogLine]:
    """What is there now, of the newest attempt where no other is asked for."""
    newest = max((line.attempt for line in _all(run)), default=0)
    yield from (line for line in _all(run) if lines.is_wanted(line, wanted, newest))


def _all(run: RunDir) -> Iterator[LogLine]:
    for kept, _ in run.kept():
        yield from lines.of(kept)


def _follow(run: RunDir, wanted: LogFilter) -> Iterator[LogLine | None]:
    """What is there and what comes, until the service is over, or the keeper that writes it down was killed."""
    at, newest = 0, run.status().attempt
    while True:
        orphan = run.is_orphan()
        over = orphan or run.status().is_over  # asked first: its last lines were written before
        for kept, reached in run.kept(at):
            at = reached
            yield from (line for line in lines.of(kept) if lines.is_wanted(line, wanted, newest))
        if orphan:
            yield LogLine(newest, OURS, None, run.status().reason)
        if over:
            return
        yield None
        time.sleep(POLL)
