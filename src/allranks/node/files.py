"""Files that others read while we write them."""

from __future__ import annotations

import os
import tempfile
from typing import Union


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
