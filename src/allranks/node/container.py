"""A node that is a container: how it gets its plan and secret, and what it knows of those before it.

An engine mounts both read-only; what changes is below the plan's ``state``, a volume that outlives the container, not
the pod.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from typing import List, Mapping, Optional, Tuple

from allranks.node.files import write_whole
from allranks.node.gang import Gang

RESTART = "ALLRANKS_RESTART"
"""Variable by which an engine that makes all pods anew tells how often it has."""

ATTEMPTS = 1000
"""Each time that all pods were made anew, attempts are counted on from the next multiple: nobody knows the last one."""

FINAL = (0, 42)


def is_delivered(gang: Gang, plan: str) -> bool:
    """Whether the plan lies elsewhere than the state: mounted by an engine, and not to be written."""
    return gang.engine != "local" and os.path.dirname(os.path.abspath(plan)) != os.path.abspath(gang.state)


def settle_in(gang: Gang, plan: str) -> Tuple[Gang, str]:
    """Make the state's folder, with the secret and a plan that says where ranks start. Raises OSError."""
    gang = replace(gang, workdir=os.path.abspath(gang.workdir or os.getcwd()))
    folders = [os.path.join(gang.state, "logs"), os.environ.get("TMPDIR", "")]
    for folder in filter(None, folders):
        os.makedirs(folder, exist_ok=True)
    with open(os.path.join(os.path.dirname(os.path.abspath(plan)), "secret"), encoding="ascii") as file:
        write_whole(os.path.join(gang.state, "secret"), file.read(), mode=0o600)
    own = os.path.join(gang.state, "plan.json")
    write_whole(own, json.dumps(asdict(gang)))
    return gang, own


def remember_end(gang: Gang, code: int) -> None:
    """Where the engine starts a container again that has ended, the run must not begin anew."""
    if code in FINAL:
        try:
            write_whole(_end_of(gang), str(code))
        except OSError:
            pass  # the disk is full: the exit code itself still tells


def how_it_ended(gang: Gang) -> Optional[int]:
    """The exit code with which a container before this one ended the run."""
    try:
        with open(_end_of(gang), encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def count_of_engine(env: Mapping[str, str]) -> List[int]:
    """Newest attempt and restarts used, as far as the engine's count of restarts tells. One is yet to be blamed."""
    restarts = _restarts(env)
    return [restarts * ATTEMPTS - 1, max(restarts - 1, 0)]


def how_pods_were_lost(env: Mapping[str, str]) -> str:
    """What became of the coordinator before, where the engine has made all pods anew; else empty."""
    restarts = _restarts(env)
    return f"was lost: the engine made all pods anew (for the {_ordinal(restarts)} time)" if restarts else ""


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number // 10 % 10 != 1 else "th"
    return f"{number}{ending}"


def _restarts(env: Mapping[str, str]) -> int:
    said = env.get(RESTART, "")
    return int(said) if said.isdigit() else 0


def _end_of(gang: Gang) -> str:
    return os.path.join(gang.state, "end")
