"""Every error that allranks raises for something a user can mend.

::

    Error                 exit code 70 (EX_SOFTWARE), never raised itself
    ├── UsageError        2   a wrong command line
    ├── SpecError         65  (EX_DATAERR) the spec is wrong
    ├── EngineError       69  (EX_UNAVAILABLE) the engine is not there, or refused
    │   ├── NotFound      69  no run of that name
    │   └── Unreachable   69  it does not answer now, and may in a moment
    ├── checkpoint.Incomplete  70  there are checkpoints, and none is complete
    └── checkpoint.DiskFull    70  a checkpoint could not be saved; an OSError too
"""

from __future__ import annotations


class Error(Exception):
    """What happened, what was found, what is allowed, and what to do next.

    ``str(error)`` is the whole message as a person should read it; it may have several lines.
    """

    exit_code = 70


class UsageError(Error):
    """The command line asks for something that cannot be."""

    exit_code = 2


class SpecError(Error):
    """The spec is wrong; the message holds every problem found, one a line, each with its place."""

    exit_code = 65


class EngineError(Error):
    """The engine cannot be reached, or refused what was asked."""

    exit_code = 69


class NotFound(EngineError):
    """No run of that name; the message lists the names that exist."""


class Unreachable(EngineError):
    """The engine does not answer now, and may in a moment. ``run`` is one that was there when it did."""

    run = ""


def first_line(error: BaseException) -> str:
    """What an error of any kind says, without the stacks that some put behind it; its kind where it says nothing."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__
