"""What a node of this machine would be as a pod of another engine: the value behind ``--as ENGINE``."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Mapping, Tuple


@dataclass(frozen=True)
class Pod:
    """``names`` are what the cluster's DNS knows it by. ``files`` maps absolute paths to text.

    ``env`` is what the engine and Kubernetes put into its container, beside the spec's own ``env``.
    """

    hostname: str
    names: Tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def environment(self, root: str) -> Dict[str, str]:
        """The variables; one that holds the path of a file names it where it lies, below ``root``."""
        return {name: root + value if value in self.files else value for name, value in self.env.items()}

    def lay_out(self, root: str) -> None:
        """Write the files below ``root``, and /etc/hostname, where a node of this machine reads its name."""
        for path, text in {**self.files, "/etc/hostname": f"{self.hostname}\n"}.items():
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            with open(root + path, "w", encoding="utf-8") as file:
                file.write(text)

    def to_json(self) -> Dict[str, Any]:
        return {**asdict(self), "names": list(self.names)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Pod:
        return cls(**{**data, "names": tuple(data["names"])})
