"""How a command, or the whole run, is over, and the exit codes that say so."""

from __future__ import annotations

EXIT_UNNAMED, EXIT_UNFIT, EXIT_NEVER_COMPLETE, EXIT_DEADLINE = 1, 69, 75, 124
"""What ``allranks run`` exits with where no rank's code says it: as false, sysexits.h and timeout(1) have them."""
EXIT_DONE, EXIT_GIVEN_UP, EXIT_CANTCREAT = 0, 42, 73
"""What an agent exits with once nobody need try again: the run succeeded, it did not, it could not even start."""


class Verdict:
    """How a command ends: phase, reason in one line, and what ``allranks run`` exits with.

    The run ends with it where it is the run's only command, or the verdict is of the ``whole`` gang.
    """

    def __init__(self, phase: str, reason: str, code: int, whole: bool = False) -> None:
        self.phase, self.reason, self.code, self.whole = phase, reason, code, whole
