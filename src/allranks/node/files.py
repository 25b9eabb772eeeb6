"""Files that others read while we write them, also when the disk is full."""

from __future__ import annotations

import errno
import os
import tempfile
from typing import Union

FULL = (errno.ENOSPC, errno.EDQUOT)


def say(line: str) -> None:
    """One line on stdout; a full disk below it ends nobody. Not by print, whose buffer would fail again at exit."""
    try:
        os.write(1, f"{line}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        pass  # nobody can be told; what was to be told goes on all the same


def write_whole(path: str, content: Union[str, bytes], mode: int = 0o644) -> None:
    """Write a file whole or not at all: nobody reads half of it. Raises OSError, and leaves nothing beside it."""
    folder, name = os.path.split(path)
    handle, fresh = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
    try:
        with open(handle, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        os.chmod(fresh, mode)
        os.replace(fresh, path)
    except BaseException:
        os.unlink(fresh)
        raise
