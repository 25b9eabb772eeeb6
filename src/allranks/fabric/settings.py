"""NCCL's variables as a process will find them: the environment over the user's file over /etc/nccl.conf."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Dict, Iterator, Mapping, Optional, Tuple

from allranks.fabric.tree import Tree
from allranks.fabric.version import Version

ENVIRONMENT = "the environment"
WHOLE_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)(0[xX](?=[0-9a-fA-F])[0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")


@dataclass(frozen=True)
class Settings:
    """``values`` by variable, and ``source``: where each comes from."""

    values: Mapping[str, str] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)

    def get(self, name: str) -> Optional[str]:
        """The value; None when it is not set or empty, which NCCL takes for the same."""
        return self.values.get(name) or None

    def number(self, name: str, default: int) -> int:
        """A number as NCCL's ncclLoadParam reads it (src/misc/param.cc): strtoll with base 0, so that text is 0."""
        text = self.get(name)
        if text is None:
            return default
        found = WHOLE_NUMBER.match(text)
        if not found:
            return 0
        digits = found.group(2)
        base = 16 if digits[:2].lower() == "0x" else 8 if digits.startswith("0") else 10
        value = int(digits, base) * (-1 if found.group(1) == "-" else 1)
        return value if -(1 << 63) <= value < 1 << 63 else default

    def with_(self, more: Mapping[str, str]) -> Settings:
        """The same with some variables set in the environment."""
        return Settings({**self.values, **more}, {**self.source, **dict.fromkeys(more, ENVIRONMENT)})


def read_settings(tree: Tree, env: Mapping[str, str], version: Version) -> Settings:
    """What NCCL of that version finds. From 2.23 NCCL_CONF_FILE stands in for ~/.nccl.conf (param.cc, initEnvFunc).

    The home folder is HOME's; up to 2.29 NCCL asked the user database instead, which mostly says the same.
    """
    values = {name: value for name, value in env.items() if name.startswith("NCCL_")}
    source = dict.fromkeys(values, ENVIRONMENT)
    own = env.get("NCCL_CONF_FILE", "") if version >= (2, 23) else ""
    home = env.get("HOME", "")
    for path in filter(None, (own or (home and os.path.join(home, ".nccl.conf")), "/etc/nccl.conf")):
        for name, value in _lines(tree.read(path.lstrip("/")) or ""):
            if name not in values:
                values[name], source[name] = value, path
    return Settings(values, source)


def _lines(text: str) -> Iterator[Tuple[str, str]]:
    """Each ``NAME=value``; a line that begins with # sets nothing of NCCL's in any version."""
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and name.startswith("NCCL_"):
            yield name, value


def saved_environment(tree: Tree) -> Dict[str, str]:
    """The environment that a saved tree keeps."""
    pairs = (item.partition("=") for item in (tree.read("proc/self/environ") or "").split("\0"))
    return {name: value for name, _, value in pairs if name}
