"""What a cluster could leave on the machine: everything of it that can be looked at, as lines."""

from __future__ import annotations

import os
from pathlib import Path

from tests.cluster.cgroups import hierarchies
from tests.cluster.processes import run
from tests.processes import descendants

SYSCTLS = (
    "vm/overcommit_memory",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",
)
OTHERS = ("mounts", "routes", "iptables", "sysctls")


def footprint() -> dict[str, set[str]]:
    """By kind. Processes and namespaces are those of descendants: pytest is the parent of what lost its own."""
    return {
        "processes": {str(process) for process in descendants(os.getpid())},
        "mounts": set(Path("/proc/self/mountinfo").read_text().splitlines()),
        "links": set(run("ip", "-o", "-br", "link").splitlines()),
        "named network namespaces": set(run("ip", "netns", "list").splitlines()),
        "routes": set(run("ip", "route", "show", "table", "all").splitlines()),
        "iptables": _rules("iptables-save") | _rules("ip6tables-save"),
        "control groups": {str(path) for top in hierarchies() for path in top.glob("*/") if path.is_dir()},
        "sysctls": {f"{name} {Path('/proc/sys', name).read_text().strip()}" for name in SYSCTLS},
        "folders": {str(path) for path in _folders() if path.exists()},
    }


def left(before: dict[str, set[str]], after: dict[str, set[str]]) -> list[str]:
    """What is there after and was not before; of what others rely on also what is gone."""
    found = []
    for kind in before:
        found += [f"{kind}: left {line}" for line in sorted(after[kind] - before[kind])]
        found += [f"{kind}: gone {line}" for line in sorted(before[kind] - after[kind]) if kind in OTHERS]
    return found


def _rules(command: str) -> set[str]:
    """Without comments, which hold the time, and counters."""
    lines = run(command).splitlines()
    return {line.partition(" [")[0] for line in lines if not line.startswith("#")}


def _folders() -> list[Path]:
    named = "/var/lib/kubelet /var/lib/cni /var/log/pods /var/log/containers /etc/cni /run/containerd /run/netns"
    named += " /tmp/k8s-webhook-server /etc/kueue /run/xtables.lock /var/lib/dockershim"
    return [Path(name) for name in named.split()]
