"""What is compared: settings by name (rdma, tcp), or as variables of NCCL's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NAMED = {"default": "", "rdma": "required", "tcp": "off"}
"""A name, and the ``network.rdma`` that it is."""


@dataclass(frozen=True)
class Setting:
    """``rdma`` is the spec's ``network.rdma`` where it is not the spec's own; ``env`` is added for every rank."""

    label: str = ""
    rdma: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


def parse(text: str) -> list[Setting]:
    """``rdma,tcp``, or ``default,NCCL_P2P_DISABLE=1+NCCL_SHM_DISABLE=1``. Raises ValueError."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if len(words) < 2:
        raise ValueError(
            f"found {text!r}; allowed are two or more settings, such as rdma,tcp or default,NCCL_ALGO=Tree"
        )
    if len(set(words)) < len(words):
        raise ValueError(f"found {text!r}: a setting is compared with itself")
    return [_one(word) for word in words]


def _one(word: str) -> Setting:
    if word in NAMED:
        return Setting(word, NAMED[word])
    pairs = [pair.partition("=") for pair in word.split("+")]
    if not all(name.isidentifier() and equals for name, equals, _ in pairs):
        raise ValueError(f"found {word!r}; allowed: {', '.join(NAMED)}, or NAME=VALUE joined by +")
    return Setting(word, env={name: value for name, _, value in pairs})
