"""What a coordinator makes of what its nodes say. Values alone, no Ray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Broken(Exception):
    """The gang cannot go on; a new one may."""


class GaveUp(Exception):
    """The gang's restarts are used up, or there is nothing to try again."""


def judge(beats: Sequence[dict[str, Any]]) -> None:
    """Of a gang that nobody has ended: raises GaveUp where no other would do better, Broken where one may."""
    status = beats[0]["status"] or {"phase": "pending"}
    ended = [node for node, beat in enumerate(beats) if beat["code"] is not None]
    if status["phase"] in ("failed", "cancelled"):
        if 0 in ended:  # else its agents are still ending it
            raise GaveUp(status["reason"] or f"the gang has {status['phase']}")
    elif ended:
        raise Broken(f"node {ended[0]}: its agent ended with {beats[ended[0]]['code']}")
