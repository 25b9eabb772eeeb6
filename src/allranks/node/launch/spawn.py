"""What a launcher asks the zygote to start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional, Tuple


@dataclass(frozen=True)
class Spawn:
    """One process. ``rank`` is None for a launcher that makes the ranks itself.

    ``environment`` is laid over the zygote's own. ``fork`` asks for a fork of the zygote; the zygote may still
    exec where a fork would not be faithful, and says why. ``learn`` is where a forked rank lists what it imports.
    """

    argv: Tuple[str, ...]
    environment: Mapping[str, str]
    log: str
    rank: Optional[int] = None
    fork: bool = False
    learn: str = ""


@dataclass(frozen=True)
class Start:
    """What the coordinator said: attempt, and where rank 0's store listens. ``shim`` is the agent's report socket."""

    attempt: int
    address: str
    port: int
    shim: str = ""
