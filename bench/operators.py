"""How gangs on the real operators get over faults, on the cluster of `make cluster`: `bench/operators.py`.

One gang of 2 nodes x 2 ranks an engine meets each fault ``--times`` times; ranks are a script that imports torch and
all-reduces. A time is from the fault to the first step of the last rank in the next attempt, by the clock that all pods
of the cluster share. What is not as it should be (cause, budget, pods) is listed below the table.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the tests' cluster is no part of the package

from tests.cluster import faults, pods  # noqa: E402
from tests.cluster.cluster import Cluster  # noqa: E402
from tests.cluster.errors import ClusterError  # noqa: E402
from tests.cluster.images.kinds import BASE  # noqa: E402
from tests.cluster.namespace import Namespace, await_gone  # noqa: E402

ENGINES = ("jobset", "mpijob", "trainjob", "pytorchjob")
PROGRAM = "says_steps.py"
RANKS = 4
PATIENCE = 180.0
STEP = re.compile(r"rank (\d+) \| step (\d+) at ([\d.]+)")


class Wrong(Exception):
    """What should have happened did not."""


BROKEN = (Wrong, ClusterError, OSError, LookupError, ValueError, subprocess.TimeoutExpired)


@dataclass
class Row:
    """One fault on one engine: what each time took (seconds), and what was not as it should be."""

    engine: str
    what: str
    took: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def line(self, times: int) -> str:
        spread = f"{min(self.took):.2f}-{max(self.took):.2f} s" if self.took else "-"
        median = f"{statistics.median(self.took):.2f} s" if self.took else "-"
        return f"| {self.what} | {self.engine} | {times - len(self.wrong)} of {times} | {median} | {spread} |"


class Gang:
    """A gang in a namespace of its own, by allranks' command line."""

    def __init__(self, cluster: Cluster, engine: str, run: str, folder: Path, **failure: Any) -> None:
        self.cluster, self.engine = cluster, engine
        self.space = Namespace(cluster, f"bench {engine}")
        self._memory = folder / "state" / self.space.name  # all runs have one name
        spec = {
            "kind": "Job", "name": "gang", "nodes": 2, "ranks_per_node": 2, "image": BASE, "run": run,
            "env": {"OMP_NUM_THREADS": 1}, "volumes": [{"host": str(ROOT / "bench/programs"), "path": "/bench"}],
            "schedule": {"namespace": self.space.name}, "pod": _apart(),
            "failure": {"grace": "5s", "restarts": 100, "start_timeout": "3m", **failure},
        }  # fmt: skip
        path = folder / f"{self.space.name}.json"
        path.write_text(json.dumps(spec))
        self.allranks("run", "--detach", "--engine", engine, str(path))

    def allranks(self, *words: str) -> str:
        env = {**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig), "XDG_STATE_HOME": str(self._memory)}
        argv = [sys.executable, "-m", "allranks", *words]
        done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=PATIENCE, check=False)
        if done.returncode:
            raise Wrong(f"allranks {' '.join(words)} ended with {done.returncode}: {done.stderr[-500:]}")
        return done.stdout

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.allranks("status", "gang", "-o", "json"))
        return found

    def until(self, what: str, wanted: Callable[[dict[str, Any]], bool], seconds: float = PATIENCE) -> dict[str, Any]:
        """The first status that is as wanted; raises Wrong."""
        until = time.monotonic() + seconds
        while not wanted(status := self.status()):
            if time.monotonic() > until:
                raise Wrong(f"not {what} within {seconds:.0f} s: {status['phase']}: {status['reason']}")
            time.sleep(0.3)
        return status

    def running(self, after: int = -1) -> dict[str, Any]:
        """The status when all ranks of an attempt later than that one run."""

        def all_of_them(status: dict[str, Any]) -> bool:
            ranks = sum(len(node["ranks"]) for node in status["nodes"])
            return status["phase"] == "running" and status["attempt"] > after and ranks == RANKS

        return self.until(f"running after attempt {after}", all_of_them)

    def steps(self, attempt: int, seconds: float = PATIENCE) -> dict[int, list[float]]:
        """When each rank made its steps in that attempt, as soon as all have made one."""
        until = time.monotonic() + seconds
        while True:
            found: dict[int, list[float]] = {}
            for rank, _, at in STEP.findall(self.allranks("logs", "gang", "--attempt", str(attempt))):
                found.setdefault(int(rank), []).append(float(at))
            if len(found) == RANKS:
                return found
            if time.monotonic() > until:
                raise Wrong(f"attempt {attempt}: only ranks {sorted(found)} step after {seconds:.0f} s")
            time.sleep(0.3)

    def pods(self) -> list[str]:
        """Each pod with how often its container was started."""
        return sorted(
            f"{pod['metadata']['uid']} {[one['restartCount'] for one in pod['status'].get('containerStatuses', [])]}"
            for pod in self.space.list("pods")
        )

    def pod(self, status: dict[str, Any], node: int) -> str:
        name: str = status["nodes"][node]["name"]
        return name

    def host_of(self, pod: str) -> str:
        host: str = self.space.get("pod", pod)["spec"]["nodeName"]
        return host


def _apart() -> dict[str, Any]:
    spread = {
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"allranks.dev/run": "gang"}},
    }  # fmt: skip
    return {"topologySpreadConstraints": [spread]}


def kill_rank(gang: Gang, status: dict[str, Any], turn: int) -> tuple[float, dict[str, Any]]:
    """Kill -9 of one rank, another one each time."""
    node, local = turn % 2, turn // 2 % 2
    found = pods.find(gang.cluster, gang.pod(status, node), gang.space.name)
    rank = status["nodes"][node]["ranks"][local]
    began = time.time()
    os.kill(found.processes[rank["pid"]], signal.SIGKILL)
    return began, {"kind": "signal", "rank": rank["rank"], "node": node, "signal": "SIGKILL"}


def kill_agent(gang: Gang, status: dict[str, Any], turn: int) -> tuple[float, dict[str, Any]]:
    """Kill -9 of the agent of a node, node 1's first."""
    node = (turn + 1) % 2
    found = pods.find(gang.cluster, gang.pod(status, node), gang.space.name)
    (agent,) = [pid for pid in found.processes.values() if _is_agent(pid)]
    began = time.time()
    os.kill(agent, signal.SIGKILL)
    return began, {"kind": "node_lost", "node": node}


def _is_agent(pid: int) -> bool:
    return b"agent.pyz\0agent\0" in Path(f"/proc/{pid}/cmdline").read_bytes()


def delete_pod(gang: Gang, status: dict[str, Any], turn: int, node: int = 1) -> tuple[float, dict[str, Any]]:
    """Kubectl delete pod, of a node that is not the coordinator's."""
    began = time.time()
    gang.space.kubectl("delete", "pod", gang.pod(status, node), "--wait=false")
    return began, {"kind": "node_lost"}


def delete_pod_0(gang: Gang, status: dict[str, Any], turn: int) -> tuple[float, dict[str, Any]]:
    """The same for the coordinator's."""
    return delete_pod(gang, status, turn, 0)


FAULTS = {"rank": kill_rank, "agent": kill_agent, "pod": delete_pod, "pod-0": delete_pod_0}
TOUCHES_NO_POD = ("rank", "agent")


def meet(gang: Gang, row: Row, turn: int) -> None:
    """One fault, what came after it, and whether that was right."""
    status = gang.running()
    attempt, used, before = status["attempt"], status["restarts"]["used"], gang.pods()
    gang.steps(attempt)
    began, expected = FAULTS[row.what](gang, status, turn)
    status = gang.running(attempt)
    anew = status["attempt"] // 1000 > attempt // 1000  # JobSet has made all pods again, and counts that itself
    wrong = [] if anew or status["attempt"] == attempt + 1 else [f"attempt {status['attempt']} came after {attempt}"]
    row.took.append(max(min(steps) for steps in gang.steps(status["attempt"]).values()) - began)
    if status["restarts"]["used"] != (status["attempt"] // 1000 if anew else used + 1):
        wrong.append(f"used {status['restarts']['used']} restarts after {used}")
    cause = status["causes"][-1]
    if seen := {name: cause.get(name) for name, value in expected.items() if cause.get(name) != value}:
        wrong.append(f"the cause has {seen}, not {expected}: {cause['message']}")
    if row.what in TOUCHES_NO_POD and gang.pods() != before:
        wrong.append("a pod or container was started anew")
    if wrong:
        raise Wrong("; ".join(wrong))


def brief_cut(gang: Gang, row: Row) -> None:
    """5 s without network: nothing happens."""
    status, before = gang.running(), gang.pods()
    pod = gang.pod(status, 1)
    faults.cut_pod(gang.cluster, pod, gang.space.name)
    time.sleep(5)
    faults.heal_pod(gang.cluster, pod, gang.space.name)
    healed = time.time()
    until = time.monotonic() + 30
    while min(map(max, (seen := gang.steps(status["attempt"])).values())) <= healed:
        if time.monotonic() > until:
            raise Wrong(f"ranks do not step again: {gang.status()['phase']}")
    row.took.append(max(min(at for at in steps if at > healed) for steps in seen.values()) - healed)
    after = gang.status()
    if (after["attempt"], gang.pods()) != (status["attempt"], before):
        raise Wrong(f"attempt {after['attempt']} came of it: {after['causes'][-1]['message']}")


def long_cut(gang: Gang, row: Row) -> None:
    """60 s without network: another attempt, and none of its steps before the last one of the attempt before it."""
    status = gang.running()
    attempt, pod = status["attempt"], gang.pod(status, 1)
    faults.cut_pod(gang.cluster, pod, gang.space.name)
    time.sleep(60)
    faults.heal_pod(gang.cluster, pod, gang.space.name)
    healed = time.time()
    now = gang.running(attempt)["attempt"]
    after = gang.steps(now)
    row.took.append(max(min(steps) for steps in after.values()) - healed)
    last = max(max(steps) for steps in gang.steps(attempt).values())
    if (first := min(min(steps) for steps in after.values())) < last:
        raise Wrong(f"attempt {now} stepped {last - first:.2f} s before the last step of attempt {attempt}")


def lose_power(gang: Gang, row: Row) -> None:
    """A node's power is lost; what the cluster has evicted is deleted by force, as status tells by then."""
    status = gang.running()
    attempt, pod = status["attempt"], gang.pod(status, 1)
    host = gang.host_of(pod)
    began = time.time()
    faults.power_off(gang.cluster, host)
    try:
        told = gang.until("told what to do", lambda now: "--force" in json.dumps(now), 120)
        print(f"  {row.engine}: told after {time.time() - began:.1f} s: {told['reason']}", flush=True)
        gang.space.kubectl("delete", "pod", pod, "--force", "--grace-period=0", "--wait=false")
        now = gang.running(attempt)
        row.took.append(max(min(steps) for steps in gang.steps(now["attempt"]).values()) - began)
        if {cause["kind"] for cause in now["causes"][-1:]} != {"node_lost"}:
            raise Wrong(f"the cause is {now['causes'][-1]['message']}")
    finally:
        faults.power_on(gang.cluster, host)
        gang.cluster.kubectl("wait", "--for=condition=Ready", f"node/{host}", "--timeout=90s")


def ends(cluster: Cluster, engine: str, folder: Path, fails: bool) -> Row:
    """From the last word of the ranks to the end that the engine's own object tells; the cause is there afterwards."""
    row = Row(engine, "budget spent to the object's end" if fails else "last step to the object's end")
    run = "python -uc 'import time; print(time.time()); raise SystemExit(7)'" if fails else f"python /bench/{PROGRAM} 5"
    gang = Gang(cluster, engine, run, folder, restarts=1 if fails else 3)
    try:
        wanted = {"Failed"} if fails else {"Succeeded", "Completed", "Complete"}
        seen = gang.space.wait(f"{engine} to end", lambda: _ended(gang, wanted), 180)
        told = gang.until("over", lambda now: now["phase"] in ("failed", "succeeded"), 60)
        said = re.findall(r"([0-9]{10}\.[0-9]+)", gang.allranks("logs", "gang"))
        row.took.append(seen - max(map(float, said)))
        causes = [(cause["attempt"], cause["exit"]) for cause in told["causes"]]
        if causes != ([(0, 7), (1, 7)] if fails else []):
            row.wrong.append(f"status tells of {causes}: {told['reason']}")
    except BROKEN as problem:
        row.wrong.append(str(problem))
    finally:
        _close(gang)
    return row


def _ended(gang: Gang, wanted: set[str]) -> float | None:
    return time.time() if wanted & gang.space.conditions(gang.engine, "gang") else None


LONGER = {"cut-5s": brief_cut, "cut-60s": long_cut, "power": lose_power}
ENDS = {"end": False, "spent": True}


def broken(cluster: Cluster, engine: str, folder: Path, args: argparse.Namespace) -> list[Row]:
    """All faults that are asked for, on one gang."""
    wanted = [name for name in args.fault if name not in ENDS]
    if not wanted:
        return []
    gang, rows = Gang(cluster, engine, f"python -u /bench/{PROGRAM}", folder), []
    try:
        for name in wanted:
            rows.append(row := Row(engine, name))
            for turn in range(args.times):
                try:
                    LONGER[name](gang, row) if name in LONGER else meet(gang, row, turn)
                except BROKEN as problem:
                    row.wrong.append(f"time {turn + 1}: {problem}")
            each = "  each: " + " ".join(f"{seconds:.2f}" for seconds in row.took)
            print(row.line(args.times), each, *row.wrong, sep="\n", flush=True)
    finally:
        _close(gang)
    return rows


def _close(gang: Gang) -> None:
    gang.space.end()
    await_gone(gang.cluster, [gang.space.name])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [*FAULTS, *LONGER, *ENDS]
    parser.add_argument("--times", type=int, default=5, help="how often each fault is met")
    parser.add_argument("--engine", action="append", choices=ENGINES, help="only this one; may be repeated")
    parser.add_argument("--fault", action="append", choices=every, help="only this one; may be repeated")
    args = parser.parse_args()
    args.fault = args.fault or every
    cluster, rows = Cluster.running(), []
    with tempfile.TemporaryDirectory() as folder:
        for engine in args.engine or ENGINES:
            rows += broken(cluster, engine, Path(folder), args)
            for name, fails in ENDS.items():
                if name in args.fault:
                    rows.append(row := ends(cluster, engine, Path(folder), fails))
                    print(row.line(1), *row.wrong, sep="\n", flush=True)
    once = {row.what for row in rows if row.what not in (*FAULTS, *LONGER)}
    print("\n| fault | engine | right | median | spread |\n|---|---|---|---|---|")
    for row in sorted(rows, key=lambda row: row.what):
        print(row.line(1 if row.what in once else args.times))
    return 1 if any(row.wrong for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
