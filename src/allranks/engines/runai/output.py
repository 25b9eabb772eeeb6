"""The file of a run: what the ``runai`` program said of it, and each line that was followed from here."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from allranks.engines.engine import LogLine
from allranks.engines.local.rundir import state_home


def path(namespace: str, name: str) -> Path:
    """``$XDG_STATE_HOME/allranks/runai/NAMESPACE/NAME.log``."""
    return state_home() / "runai" / quote(namespace, safe="") / f"{quote(name, safe='')}.log"


def begin(namespace: str, name: str, said: str) -> None:
    """A new file with what the program said. A full disk here must not end a gang elsewhere: then there is none."""
    file = path(namespace, name)
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(said if said.endswith("\n") or not said else f"{said}\n", encoding="utf-8")


def kept(lines: Iterator[LogLine | None], namespace: str, name: str) -> Iterator[LogLine | None]:
    """The same lines; each is in the run's file, where there is one, before it is passed on."""
    file = path(namespace, name)
    if not os.access(file, os.W_OK):
        yield from lines
        return
    with open(file, "a", encoding="utf-8", buffering=1, errors="replace") as out:
        for line in lines:
            if line is not None:
                who = f"rank {line.rank}" if line.rank is not None else f"node {line.node}"
                with contextlib.suppress(OSError):
                    out.write(f"{line.attempt} {who} | {line.text}\n")
            yield line
