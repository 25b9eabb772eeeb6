"""The record of what ended an attempt."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any, Dict, Mapping, Optional, Tuple

KINDS = (
    "exit", "signal", "oom", "exception", "import", "hang", "node_lost",
    "start_timeout", "deadline", "transport", "preflight", "cancelled",
)  # fmt: skip


def utc(at: Optional[float] = None) -> str:
    """A moment (now, if none is given) as the records write it."""
    moment = datetime.fromtimestamp(time.time() if at is None else at, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(text: str) -> float:
    """Seconds since 1970 of a time as ``utc`` and Kubernetes write it. Raises ValueError for what is none."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def known(kind: Any, data: Mapping[str, Any]) -> Dict[str, Any]:
    """Of a record's fields those that this version's dataclass has: a newer one may have written more.

    Raises TypeError or ValueError for what has no fields.
    """
    return {name: value for name, value in dict(data).items() if name in kind.__dataclass_fields__}


@dataclass(frozen=True)
class Secondary:
    """A rank that fell because the culprit had: shown, never blamed."""

    rank: int
    kind: str
    message: str


@dataclass(frozen=True)
class Cause:
    """Why attempt ``attempt`` ended: the first death by the coordinator's clock.

    ``rank`` is None when no rank is to blame (a node lost, a deadline); ``exit`` is the shell's code
    (128 + n for signal n); ``at`` is UTC in ISO 8601 with milliseconds; ``tail`` holds the rank's last lines.
    """

    attempt: int
    kind: str
    at: str
    message: str
    rank: Optional[int] = None
    node: Optional[int] = None
    signal: Optional[str] = None
    exit: Optional[int] = None
    tail: Tuple[str, ...] = ()
    log: str = ""
    secondary: Tuple[Secondary, ...] = ()

    def to_json(self) -> Dict[str, Any]:
        return {**asdict(self), "tail": list(self.tail), "secondary": [asdict(s) for s in self.secondary]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cause:
        fields = known(cls, data)
        fields["tail"] = tuple(fields.get("tail", ()))
        fields["secondary"] = tuple(Secondary(**known(Secondary, s)) for s in fields.get("secondary", ()))
        return cls(**fields)
