"""What a node's processes print: a file that grows, read as whole lines and kept within a bound."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from allranks.node import logs


class Printed:
    """Reads on from where it was. ``limit`` is in bytes: the oldest part of the file goes, read or not."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path, self._limit, self._at = path, limit, 0

    def lines(self, most: int) -> Iterator[str]:
        """Yield at most so many new lines, without their ends. Raises OSError."""
        logs.cut(str(self._path), self._limit)
        with self._path.open("rb") as file:
            self._at = file.seek(max(self._at, logs.beginning(file.fileno())))
            for line in itertools.islice(file, most):
                if not line.endswith(b"\n"):
                    return
                self._at += len(line)
                yield line.decode("utf-8", "replace").rstrip("\n")
