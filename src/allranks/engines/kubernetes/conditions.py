"""What an engine's own object says of the run: its conditions, in the operators' common form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allranks.engines.kubernetes.pods import Object, moment

SUCCEEDED = ("Completed", "Complete", "Succeeded")
"""JobSet says Completed, Job and TrainJob Complete, MPIJob and PyTorchJob Succeeded."""


@dataclass(frozen=True)
class Ending:
    """How the engine's object ended, and since when."""

    phase: str
    reason: str
    at: str


def ending(found: Object) -> Ending | None:
    """How it ended; None while it has not."""
    for one in _true(found):
        kind = str(one.get("type"))
        if kind in SUCCEEDED or kind == "Failed":
            why = ": ".join(filter(None, (str(one.get("reason", "")), str(one.get("message", "")))))
            phase = "failed" if kind == "Failed" else "succeeded"
            return Ending(phase, why if phase == "failed" else "", str(one.get("lastTransitionTime", "")))
    return None


def is_suspended(found: Object) -> bool:
    """Whether its pods are held back, by Kueue or by hand."""
    spec = found.get("spec") or {}
    return bool(spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend"))


def let_in(found: Object) -> float:
    """Since when its pods are not held back any more, in seconds since 1970; 0 where they never were."""
    for one in (found.get("status") or {}).get("conditions") or ():
        if one.get("type") == "Suspended" and one.get("status") == "False":
            return moment(str(one.get("lastTransitionTime", "")))
    return 0.0


def shown(found: Object) -> list[str]:
    """The conditions that hold, each in a line: ``StartupPolicyCompleted (AllJobsReady)``."""
    return [f"{one['type']} ({one['reason']})" if one.get("reason") else str(one["type"]) for one in _true(found)]


def _true(found: Object) -> Iterator[Object]:
    for one in (found.get("status") or {}).get("conditions") or ():
        if one.get("status") == "True":
            yield one
