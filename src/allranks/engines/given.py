"""Commands of a gang that stays, as every engine has them: what may be given, and what is said when it cannot be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from allranks.errors import EngineError, UsageError
from allranks.node.status import CommandStatus, Status


def must_fit(argv: Sequence[str]) -> None:
    """Raise UsageError for a command that is too long for the agents' port."""
    from allranks.node.ask import MOST_BYTES

    if sum(len(word.encode("utf-8", "surrogateescape")) for word in argv) > MOST_BYTES:
        raise UsageError(f"the command is longer than {MOST_BYTES // 1024} KiB; put its arguments into a file")


def refused(name: str, answer: Mapping[str, Any]) -> EngineError:
    """What to raise for a coordinator's refusal, with the way out; ``answer`` names a ``command`` when one runs."""
    way_out = f"\nEnd it with 'allranks cancel {name}'."
    if "command" in answer:
        way_out = (
            f"\nWatch it with 'allranks logs -f {name}', stop it with 'allranks cancel --command {name}', "
            f"or start another gang: 'allranks up --name OTHER'."
        )
    return EngineError(f"gang {name}: {answer['refused']}{way_out}")


def goes_on(name: str) -> EngineError:
    """What to raise for a command that was stopped and is not over."""
    way_out = f"end it all with 'allranks cancel {name}'"
    return EngineError(f"gang {name}: its record does not say that the command has ended; {way_out}")


def is_over(status: Status, up: str) -> EngineError:
    """What to raise for a gang that takes no commands any more; ``up`` is the line that starts it again."""
    return EngineError(f"{status.name} is over ({status.phase}); start it again with '{up}'")


def has_its_own(name: str, up: str) -> EngineError:
    """What to raise for a run, which takes no commands; ``up`` is the line that starts a gang that does."""
    return EngineError(f"run {name} has a command of its own, and ends with it; for a gang to exec on: '{up}'")


def running(status: Status) -> CommandStatus:
    """The command that the gang runs. Raises EngineError when it runs none."""
    there = [command for command in status.commands if not command.is_over]
    if not there:
        way_out = f"end the gang itself with 'allranks cancel {status.name}'"
        raise EngineError(f"gang {status.name} runs no command; {way_out}")
    return there[-1]
