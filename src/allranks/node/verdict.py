"""How a command, or the whole run, is over."""

from __future__ import annotations


class Verdict:
    """How a command ends: phase, reason in one line, and what ``allranks run`` exits with.

    The run ends with it where it is the run's only command, or the verdict is of the ``whole`` gang.
    """

    def __init__(self, phase: str, reason: str, code: int, whole: bool = False) -> None:
        self.phase, self.reason, self.code, self.whole = phase, reason, code, whole
