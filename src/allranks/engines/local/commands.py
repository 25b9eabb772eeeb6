"""Commands of a gang that stays: given to its coordinator, watched in its record, stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from allranks.engines.engine import LogFilter
from allranks.engines.local import program
from allranks.engines.local.rundir import RunDir, until
from allranks.errors import EngineError, UsageError
from allranks.node.gang import Gang
from allranks.node.status import Status

STOP_SLACK = 25.0
"""Seconds that a stopped command may take beyond its grace."""


class Given:
    """A command that a gang was given."""

    def __init__(self, run: RunDir, number: int, first: int = 0) -> None:
        self._run, self._number = run, number
        self.name, self.lines = run.name, LogFilter(command=number, since=first)

    def status(self) -> Status:
        return self._run.status().of_command(self._number)

    def cancel(self, *, reason: str, code: int) -> None:
        """End it. Raises EngineError when it does not end, or the disk is too full for its record to say so."""
        answer = _ask(self._run, self._run.gang(), what="stop", command=self._number, reason=reason, code=code)
        over = "refused" in answer  # as was wanted; the record has it in a moment
        if not self.wait(STOP_SLACK if over else self._run.gang().grace + STOP_SLACK):
            way_out = f"end it all with 'allranks cancel {self.name}'"
            raise EngineError(f"gang {self.name}: its record does not say that the command has ended; {way_out}")

    def detach(self) -> None:
        """It does not hang on this process."""

    def wait(self, timeout: float) -> bool:
        return until(lambda: self.status().is_over, timeout)


def give(run: RunDir, argv: Sequence[str], restarts: int) -> Given:
    """Have the gang run a command. Raises SpecError, EngineError."""
    from allranks.node.ask import MOST_BYTES

    gang = _must_be_up(run)
    if sum(len(word.encode("utf-8", "surrogateescape")) for word in argv) > MOST_BYTES:
        raise UsageError(f"the command is longer than {MOST_BYTES // 1024} KiB; put its arguments into a file")
    program.check(argv, Path(gang.workdir), gang.env)
    answer = _ask(run, gang, what="exec", argv=list(argv), restarts=restarts)
    if "refused" not in answer:
        return Given(run, answer["command"], answer["attempt"])
    way_out = f"\nEnd it with 'allranks cancel {run.name}'."
    if "command" in answer:
        way_out = (
            f"\nWatch it with 'allranks logs -f {run.name}', stop it with 'allranks cancel --command {run.name}', "
            f"or start another gang: 'allranks up --name OTHER'."
        )
    raise EngineError(f"gang {run.name}: {answer['refused']}{way_out}")


def stop(run: RunDir, reason: str, code: int) -> Status:
    """End the command that runs, and wait for its end. Raises EngineError when there is none, or it does not end."""
    _must_be_up(run)
    running = [command for command in run.status().commands if not command.is_over]
    if not running:
        raise EngineError(f"gang {run.name} runs no command; end the gang itself with 'allranks cancel {run.name}'")
    given = Given(run, running[-1].number)
    given.cancel(reason=reason, code=code)
    return given.status()


def _must_be_up(run: RunDir) -> Gang:
    gang, status = run.gang(), run.status()
    if status.is_over:
        again = (
            f"start it again with 'allranks up --name {run.name} --nodes {gang.nodes} --ranks {gang.ranks_per_node}'"
        )
        raise EngineError(f"{run.name} is over ({status.phase}); {again}")
    if not gang.stays:
        line = f"'allranks up --name OTHER --nodes {gang.nodes} --ranks {gang.ranks_per_node}'"
        raise EngineError(f"run {run.name} has a command of its own, and ends with it; for a gang to exec on: {line}")
    return gang


def _ask(run: RunDir, gang: Gang, **request: Any) -> dict[str, Any]:
    from allranks.node.ask import ask
    from allranks.node.gang import read_secret
    from allranks.node.wire import WireError

    try:
        return ask(gang, read_secret(str(run.path)), **request)
    except (OSError, WireError) as error:
        raise EngineError(f"gang {run.name} cannot be asked at {gang.coordinator}:{gang.port}: {error}") from error
