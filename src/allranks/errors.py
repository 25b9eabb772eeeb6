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

import os
from collections.abc import Sequence


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
    """No run of that name; ``place`` is where it was looked for, if not on this machine."""

    place = ""


def no_run(name: str, names: Sequence[str], places: Sequence[str] = ()) -> NotFound:
    """Say that no run has this name, and which have others: ``names``, here and in ``places``."""
    from difflib import get_close_matches

    shown = name if name.isprintable() and len(name) <= 60 else f"{name[:60]!r}..."
    near = get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    if names:
        there = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        return NotFound(f"no run named {shown}{hint}; runs {' and in '.join(['here', *places])}: {there}")
    return NotFound(f"no run named {shown}; there are no runs {', nor in '.join(['here', *places])}")


class Unreachable(EngineError):
    """The engine does not answer now, and may in a moment. ``run`` is one that was there when it did."""

    run = ""


def first_line(error: BaseException) -> str:
    """What an error of any kind says, without the stacks that some put behind it; its kind where it says nothing."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def system_reason(error: BaseException) -> str:
    """What the system says of an error, without number, path or address; all that a resolver says (its are below 0)."""
    code = getattr(error, "errno", None) or 0
    return os.strerror(code) if code > 0 else str(error)
