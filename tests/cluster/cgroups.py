"""The control groups of the nodes, version 1 and 2: made before a kubelet starts, removed with the cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.errors import ClusterError
from tests.cluster.layout import CGROUP
from tests.cluster.processes import wait

ROOT = Path("/sys/fs/cgroup")


def make(node: str) -> None:
    """The kubelet wants its root to be there in every hierarchy."""
    for hierarchy in hierarchies():
        group = hierarchy / CGROUP / node
        group.mkdir(parents=True, exist_ok=True)
        if hierarchy.name == "cpuset":
            _inherit(group.parent)
            _inherit(group)
        if hierarchy == ROOT:
            _delegate(hierarchy, hierarchy / CGROUP, group)


def hierarchies() -> list[Path]:
    """Where control groups are mounted: one folder with version 2, one a controller with version 1."""
    if (ROOT / "cgroup.controllers").exists():
        return [ROOT]
    return [path for path in sorted(ROOT.iterdir()) if path.is_dir() and not path.is_symlink()]


def exist() -> bool:
    """Whether any is there."""
    return any((hierarchy / CGROUP).exists() for hierarchy in hierarchies())


def remove(node: str = "") -> None:
    """Those of one node or all; what was in them is dead, the kernel lets go of it a moment later."""
    wait("the control groups to be empty", lambda: not [g for g in _groups(node) if not _removed(g)], 30)


def _groups(node: str) -> Iterator[Path]:
    for hierarchy in hierarchies():
        top = hierarchy / CGROUP / node
        if top.exists():
            yield from (Path(folder) for folder, _, _ in os.walk(top, topdown=False))


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _inherit(group: Path) -> None:
    """A new cpuset group is empty, and then nothing may run in it."""
    for file in ("cpuset.cpus", "cpuset.mems"):
        (group / file).write_text((group.parent / file).read_text())


def _delegate(*groups: Path) -> None:
    for group in groups:
        for controller in (group / "cgroup.controllers").read_text().split():
            try:
                (group / "cgroup.subtree_control").write_text(f"+{controller}")
            except OSError as error:
                if controller in ("cpu", "memory", "pids"):
                    raise ClusterError(f"{group}: cannot have {controller} below it: {error}") from error
