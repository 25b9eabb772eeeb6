"""Stands in for a run's supervisor in tests of the client: a real process that holds the lock and keeps the record.

What it does is in the plan's ``env``, variable ACT: the acts below, comma-separated, one after another.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PLAN: dict[str, Any] = json.loads(Path(sys.argv[2]).read_text())
STATE = Path(PLAN["state"])
LIFELINE = int(sys.argv[4]) if len(sys.argv) > 3 else None
STATUS: dict[str, Any] = {
    "name": PLAN["run"],
    "engine": "local",
    "phase": "pending",
    "restarts": {"used": 0, "allowed": PLAN["restarts"]},
    "world_size": PLAN["nodes"] * PLAN["ranks_per_node"],
    "nodes": [
        {
            "node": node,
            "name": f"{PLAN['run']}-{node}",
            "address": PLAN["addresses"][node],
            "ranks": [
                {"rank": node * PLAN["ranks_per_node"] + r, "local_rank": r} for r in range(PLAN["ranks_per_node"])
            ],
        }
        for node in range(PLAN["nodes"])
    ],
    "causes": [],
    "started": "2026-01-02T03:04:05.000Z",
}


def record(**changes: Any) -> None:
    STATUS.update(changes)
    new = STATE / "status.new"
    new.write_text(json.dumps(STATUS))
    new.replace(STATE / "status.json")


def end(phase: str, code: int, reason: str = "") -> None:
    record(phase=phase, exit_code=code, reason=reason, ended="2026-01-02T03:04:17.000Z")
    sys.exit(0)


def say(rank: int, text: str) -> None:
    folder = STATE / "logs" / f"attempt-{STATUS.get('attempt', 0)}"
    folder.mkdir(exist_ok=True)
    with (folder / f"rank-{rank}.log").open("ab") as log:
        log.write(text.encode())


def running() -> None:
    for node in STATUS["nodes"]:
        node["phase"] = "running"
        for rank in node["ranks"]:
            rank.update(state="running", pid=os.getpid())
    record(phase="running")


def speak() -> None:
    for rank in range(STATUS["world_size"]):
        say(rank, f"hello from rank {rank}\nlast words of {rank}")


def blame() -> None:
    log = str(STATE / "logs" / f"attempt-{STATUS.get('attempt', 0)}" / "rank-1.log")
    cause = {
        "attempt": STATUS.get("attempt", 0),
        "kind": "signal",
        "signal": "SIGKILL",
        "exit": 137,
        "at": "2026-01-02T03:04:09.000Z",
        "message": "rank 1 on node 0: killed by SIGKILL",
        "rank": 1,
        "node": 0,
        "tail": ["step 7"],
        "log": log,
        "secondary": [{"rank": 0, "kind": "exit", "message": "Connection reset by peer"}],
    }
    STATUS["causes"] = [*STATUS["causes"], cause]


def restart() -> None:
    blame()
    STATUS["restarts"]["used"] += 1
    record(phase="restarting")
    time.sleep(0.2)
    record(attempt=STATUS.get("attempt", 0) + 1)


def fail() -> None:
    blame()
    end("failed", 137, "rank 1 on node 0: killed by SIGKILL (restarts: 1 of 1 used)")


def refuse() -> None:
    print("no port is free on 127.1.0.1")
    sys.exit(73)


def wait() -> None:
    """Until told to end: by SIGTERM, or by the command line's death."""
    while True:
        readable, _, _ = select.select([WAKE, *([LIFELINE] if LIFELINE is not None else [])], [], [], 30)
        if LIFELINE in readable and os.read(LIFELINE, 1):
            return wait_for_term()
        asked = json.loads((STATE / "cancel").read_text()) if (STATE / "cancel").exists() else {}
        return end("cancelled", asked.get("code", 143), asked.get("reason", "the command line went away"))


def wait_for_term() -> None:
    select.select([WAKE], [], [], 30)
    asked = json.loads((STATE / "cancel").read_text())
    end("cancelled", asked["code"], asked["reason"])


ACTS: dict[str, Callable[[], object]] = {
    "running": running,
    "speak": speak,
    "restart": restart,
    "fail": fail,
    "refuse": refuse,
    "wait": wait,
    "succeed": lambda: end("succeeded", 0),
    "pause": lambda: time.sleep(0.3),
    "deaf": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "sleep": lambda: time.sleep(30),
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
}

WAKE, _write_end = os.pipe()
os.set_blocking(_write_end, False)
signal.set_wakeup_fd(_write_end)
signal.signal(signal.SIGTERM, lambda number, frame: None)

if __name__ == "__main__":
    acts = PLAN["env"]["ACT"].split(",")
    lock = (STATE / "lock").open("w")
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock.write(f"{os.getpid()} {Path('/proc/self/stat').read_text().split()[21]}\n")
    lock.flush()
    if acts[0] != "refuse":
        record()
    for act in acts:
        ACTS[act]()
