"""What all ranks run: a run's only command, or one after another of a gang that stays."""

from __future__ import annotations

import time
from typing import List, Mapping, Optional, Sequence

from allranks.node.cause import utc
from allranks.node.gang import Gang
from allranks.node.status import CommandStatus

MAX_COMMANDS = 50


class Commands:
    """All that the gang was given. A run was given its only one at its start."""

    def __init__(self, gang: Gang) -> None:
        self.records: List[CommandStatus] = []
        if not gang.stays:
            self.give(gang.argv, gang.restarts, first=0)

    def take_over(self, records: Sequence[CommandStatus]) -> None:
        """Go on from what an earlier coordinator had recorded."""
        if records:
            self.records = list(records)

    @property
    def current(self) -> Optional[CommandStatus]:
        """The one that runs or is about to."""
        return self.records[-1] if self.records and not self.records[-1].is_over else None

    @property
    def allowed(self) -> int:
        """How often the newest may start again."""
        return self.records[-1].restarts if self.records else 0

    @property
    def last_attempt(self) -> int:
        """The newest attempt that any of them made, or -1."""
        return self.records[-1].last_attempt if self.records else -1

    def give(self, argv: Sequence[str], restarts: int, first: int) -> CommandStatus:
        """Take the next one; its first attempt will be ``first``."""
        number = self.records[-1].number + 1 if self.records else 0
        command = CommandStatus(number, list(argv), restarts, first, started=utc(time.time()))
        self.records = [*self.records[-MAX_COMMANDS + 1 :], command]
        return command

    def count(self, attempt: int) -> None:
        """Take down that the current one makes this attempt."""
        assert self.current is not None
        self.current.attempts = attempt - self.current.attempt + 1

    def end(self, phase: str, reason: str, code: int) -> None:
        """Take down how the current one ended."""
        command = self.current
        if command is not None:
            command.phase, command.reason, command.exit_code, command.ended = phase, reason, code, utc()

    def is_of_current(self, told: Mapping[str, object]) -> bool:
        """Whether an agent that says ``command`` speaks of what runs next. One that says nothing knows the first."""
        return self.current is None or told.get("command", 0) == self.current.number

    def told(self) -> str:
        """What ran last, in one line."""
        if not self.records:
            return "nothing ran yet"
        last = self.records[-1]
        return f"{last.line} {last.phase}" + (f": {last.reason}" if last.reason else "")
