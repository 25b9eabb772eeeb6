"""What a gang has behind it: attempts, restarts used and their causes, when its pods were made anew.

An engine that makes all pods anew when one is lost says how often it did (``ALLRANKS_RESTART``); all else goes with the
pods, unless it was kept where they are not (``keeper.py``). No input or output here but an agent's own count.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple

from allranks.node import termination
from allranks.node.cause import Cause, utc
from allranks.node.files import write_whole

if TYPE_CHECKING:
    from allranks.node.course import Course
    from allranks.node.gang import Gang

MADE_ANEW = "ALLRANKS_RESTART"
"""Variable: how often the engine has made all pods of the run anew."""
ATTEMPTS_OF_A_SET = 1000
"""Attempt numbers go on rising over that, whatever the lost pods knew; the loss itself is one that counts."""
LARGEST = 16384
"""Bytes of a ledger in JSON: ten causes with what their ranks printed last, or more with less."""


@dataclass(frozen=True)
class Ledger:
    """As known in the pods of set number ``sets`` (0 for the first). ``owed`` are causes that are yet to be counted."""

    sets: int = 0
    attempt: int = -1
    used: int = 0
    causes: Tuple[Cause, ...] = ()
    owed: Tuple[Cause, ...] = ()

    @property
    def ran(self) -> bool:
        """Whether an attempt was started in this set."""
        return self.attempt >= self.sets * ATTEMPTS_OF_A_SET

    @property
    def blamed(self) -> Optional[Cause]:
        """What ended the last attempt, where that is known."""
        return next((cause for cause in self.causes if cause.attempt == self.attempt), None)


def sets_made(env: Mapping[str, str] = os.environ) -> int:
    """How often the engine has made all pods anew, where it says so."""
    times = env.get(MADE_ANEW, "")
    return int(times) if times.isascii() and times.isdigit() else 0


def entry(course: Course, sets: int) -> Dict[str, Any]:
    """What is to be kept of a gang's course now; the last ``owed`` of its record's causes are yet to be counted."""
    status, owed = course.status, course.owed
    status.causes += owed
    numbers = {"sets": sets, "attempt": course.last_attempt, "used": course.used, "owed": len(owed)}
    return {**numbers, "record": termination.cut(status, LARGEST)}


def mark(course: Course) -> Tuple[object, ...]:
    """Another one whenever there is something new to be kept."""
    return course.last_attempt, course.used, *course.causes[-1:], *course.owed, course.state == "finishing"


def read(entry: Mapping[str, Any]) -> Ledger:
    """Raises ValueError, TypeError, KeyError for what is none."""
    causes = tuple(map(Cause.from_json, entry["record"]["causes"]))
    counted = len(causes) - int(entry["owed"])
    sets, attempt, used = [int(entry[name]) for name in ("sets", "attempt", "used")]
    return Ledger(sets, attempt, used, causes[:counted], causes[counted:])


def settle(known: Optional[Ledger], sets: int, engine: str) -> Ledger:
    """What a new set of pods goes on with: of each that was lost since ``known``, one restart and a cause.

    A loss that the lost coordinator had seen is counted already; one that it did not live to see was its own.
    """
    if known is None:
        known = Ledger(used=max(sets - 1, 0), owed=(_anew(sets, engine, FORGOTTEN),) if sets else ())
        return _numbered(known, sets)
    owed = list(known.owed)
    if not owed and known.ran and known.blamed is None:
        message = "node 0: its pod was lost with the coordinator, without a word"
        owed.append(Cause(known.attempt, "node_lost", utc(), message, node=0, exit=1))
    explained = bool(owed) or (known.ran and known.blamed is not None and known.blamed.kind == "node_lost")
    owed += [_anew(one, engine, UNSEEN) for one in range(known.sets + 1 + explained, sets + 1)]
    return _numbered(replace(known, owed=tuple(owed)), sets)


def _numbered(ledger: Ledger, sets: int) -> Ledger:
    first = sets * ATTEMPTS_OF_A_SET
    return replace(ledger, sets=sets, attempt=max(first - 1, ledger.attempt))


FORGOTTEN = "which one is not known, nor what was before (failure.force_delete would let the gang remember)"
UNSEEN = "which one nobody saw, for the gang was not complete"


def _anew(times: int, engine: str, which: str) -> Cause:
    message = f"{engine} has made all pods anew for the {ordinal(times)} time: one was lost; {which}"
    return Cause(times * ATTEMPTS_OF_A_SET - 1, "node_lost", utc(), message, exit=1)


def ordinal(number: int) -> str:
    """``1st``, ``2nd``, ``11th``."""
    teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


# An agent's own count, which goes to the coordinator with its hello


def _path(gang: Gang, node: int) -> str:
    return os.path.join(gang.state, f"node-{node}.json")


def recall(gang: Gang, node: int) -> List[int]:
    """Attempt and restarts used, as an earlier life of this agent knew them, or by how often its pod was made anew."""
    try:
        with open(_path(gang, node), encoding="utf-8") as file:
            known = json.load(file)
        return [int(known["attempt"]), int(known["used"])]
    except (OSError, ValueError, KeyError, TypeError):
        anew = settle(None, sets_made(), gang.engine)
        return [anew.attempt, anew.used]


def remember(gang: Gang, node: int, attempt: int, used: int) -> None:
    """Raises OSError."""
    write_whole(_path(gang, node), json.dumps({"attempt": attempt, "used": used}))
