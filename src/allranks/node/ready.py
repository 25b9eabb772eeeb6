"""Whether a node of a service may be called ready: ``ready PLAN PORT PATH [--from-the-start]``, a container's probe.

Node 0 is ready when its server says so by 200 at PATH, any other node once it has started ranks. All of them have one
template, so one command must do for all. Where nodes find each other only by names of ready pods, they would never
become a gang: there ``--from-the-start`` has node 0's server asked only while the ranks run.
"""

from __future__ import annotations

import http.client
import json
import os
from typing import List

from allranks.node.gang import Gang, load

ANSWER_WAIT = 4.0
NOT_READY = 1
MOST = 65536


def main(argv: List[str]) -> int:
    """0 when it is, else NOT_READY with the reason on standard output."""
    gang, port, path = load(argv[0]), int(argv[1]), argv[2]
    why = "" if "--from-the-start" in argv[3:] and not _runs(gang) else _why_not(gang, port, path)
    if why:
        print(why)
    return NOT_READY if why else 0


def _why_not(gang: Gang, port: int, path: str) -> str:
    started = [name for name in _names(gang.state) if name.startswith("node-") and name.endswith(".json")]
    if not started:
        return "no rank has started here"
    return asked(port, path) if "node-0.json" in started else ""


def _names(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _runs(gang: Gang) -> bool:
    """Whether this is node 0, and all ranks run as far as it knows."""
    try:
        with open(os.path.join(gang.state, "status.json"), encoding="utf-8") as file:
            return bool(json.load(file)["phase"] == "running")
    except (OSError, ValueError, KeyError):
        return False


def asked(port: int, path: str) -> str:
    """Why a server of this node is not ready by its own word; empty when it is."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_WAIT)
    try:
        line.request("GET", path)
        answer = line.getresponse()
        said = answer.read(MOST).decode("utf-8", "replace").strip()[:200]
        return "" if answer.status == 200 else f"{path}: {answer.status} {said}"
    except (OSError, http.client.HTTPException) as error:
        return f"port {port}: {error or type(error).__name__}"
    finally:
        line.close()
