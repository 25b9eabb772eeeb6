"""What one gang meets by itself: a rank, an agent or a pod is lost, or it ends."""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.faults.gangs import BROKEN, STEPPING, Gang, Row, Wrong, check_restart
from tests.cluster import pods
from tests.cluster.cluster import Cluster

TOUCHES_NO_POD = ("rank", "agent")
OVER = ("failed", "succeeded", "cancelled")
UNSEEN = {"rank": 1.0, "agent": 1.0, "pod": 6.0, "pod-0": 6.0}
"""Seconds in which nobody looks: a look takes half a core, which the gang would need, and its lines tell the time."""


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
    return began, {"kind": "node_lost", "node": node}


def delete_pod_0(gang: Gang, status: dict[str, Any], turn: int) -> tuple[float, dict[str, Any]]:
    """The same for the coordinator's."""
    return delete_pod(gang, status, turn, 0)


FAULTS = {"rank": kill_rank, "agent": kill_agent, "pod": delete_pod, "pod-0": delete_pod_0}


def meet(gang: Gang, row: Row, turn: int) -> None:
    """One fault, what came after it, and whether that was right."""
    before, pods_before = gang.running(), gang.pods()
    gang.steps(before["attempt"])
    began, expected = FAULTS[row.what](gang, before, turn)
    time.sleep(UNSEEN[row.what])
    after = gang.running(before["attempt"])
    row.took.append(gang.back(after["attempt"]) - began)
    check_restart(before, after, expected)
    if row.what in TOUCHES_NO_POD and gang.pods() != pods_before:
        raise Wrong("a pod or container was started anew")


def is_spent(gang: Gang, what: str, turn: int) -> bool:
    """Whether another gang is needed: an MPIJob outlives one loss of its launcher's pod."""
    return gang.status()["phase"] in OVER or (what == "pod-0" and gang.engine == "mpijob" and turn > 0)


def ends(cluster: Cluster, engine: str, folder: Path, fails: bool) -> Row:
    """From the last step, or the last cause, to the end that the engine's own object tells; all is told afterwards."""
    row = Row(engine, "budget spent to the object's end" if fails else "last step to the object's end")
    run = "python -uc 'raise SystemExit(7)'" if fails else f"{STEPPING} 30"
    gang = Gang(cluster, engine, folder, run, restarts=1 if fails else 3)
    try:
        wanted = {"Failed"} if fails else {"Succeeded", "Completed", "Complete"}
        seen = gang.space.wait(f"{engine} to end", lambda: _ended(gang, wanted), 180)
        told = gang.until("over", lambda now: now["phase"] in OVER, 60)
        causes = [(cause["attempt"], cause["exit"]) for cause in told["causes"]]
        if causes != ([(0, 7), (1, 7)] if fails else []):
            said = [cause["message"] for cause in told["causes"]]
            raise Wrong(f"status tells of {causes}: {'; '.join(said) or told['reason']}")
        last = _moment(told["causes"][-1]["at"]) if fails else max(map(max, gang.steps(0, seconds=0).values()))
        row.took.append(seen - last)
    except BROKEN as problem:
        row.wrong.append(str(problem))
    finally:
        gang.close()
    return row


def _ended(gang: Gang, wanted: set[str]) -> float | None:
    return time.time() if wanted & gang.space.conditions(gang.engine, "gang") else None


def _moment(utc: str) -> float:
    return datetime.fromisoformat(utc.replace("Z", "+00:00")).timestamp()
