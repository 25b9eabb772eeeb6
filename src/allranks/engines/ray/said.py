"""An error of Ray's in one line."""

from __future__ import annotations

from allranks.errors import first_line


def said(error: BaseException) -> str:
    """Kind and first line of an error; of one that Ray brings from another process, of that one.

    Ray's own word for such a one begins with the other process's address, and goes on with its stack.
    """
    cause = getattr(error, "cause", None)
    found = cause if isinstance(cause, Exception) else error
    return f"{type(found).__name__}: {first_line(found)}"
