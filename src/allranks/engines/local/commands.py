"""Commands of a gang that stays: given to its coordinator, watched in its record, stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from allranks.engines import given
from allranks.engines.engine import LogFilter
from allranks.engines.local import program
from allranks.engines.local.rundir import RunDir, until
from allranks.errors import EngineError
from allranks.node.gang import Gang, read_secret
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
            raise given.goes_on(self.name)

    def detach(self) -> None:
        """It does not hang on this process."""

    def wait(self, timeout: float) -> bool:
        return until(lambda: self.status().is_over, timeout)


def give(run: RunDir, argv: Sequence[str], restarts: int) -> Given:
    """Have the gang run a command. Raises SpecError, EngineError."""
    gang = _must_be_up(run)
    given.must_fit(argv)
    program.check(argv, Path(gang.workdir), gang.env)
    answer = _ask(run, gang, what="exec", argv=list(argv), restarts=restarts)
    if "refused" in answer:
        raise given.refused(run.name, answer)
    return Given(run, answer["command"], answer["attempt"])


def stop(run: RunDir, reason: str, code: int) -> Status:
    """End the command that runs, and wait for its end. Raises EngineError when there is none, or it does not end."""
    _must_be_up(run)
    command = Given(run, given.running(run.status()).number)
    command.cancel(reason=reason, code=code)
    return command.status()


def _must_be_up(run: RunDir) -> Gang:
    gang, status = run.gang(), run.status()
    size = f"--nodes {gang.nodes} --ranks {gang.ranks_per_node}"
    if status.is_over:
        raise given.is_over(status, f"allranks up --name {run.name} {size}")
    if not gang.stays:
        raise given.has_its_own(run.name, f"allranks up --name OTHER {size}")
    return gang


def _ask(run: RunDir, gang: Gang, **request: Any) -> dict[str, Any]:
    from allranks.node.ask import ask
    from allranks.node.wire import WireError

    try:
        return ask(gang, read_secret(str(run.path)), **request)
    except (OSError, WireError) as error:
        raise EngineError(f"gang {run.name} cannot be asked at {gang.coordinator}:{gang.port}: {error}") from error
