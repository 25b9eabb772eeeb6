"""Whether this machine can have a cluster, and one thing at a time being done with it."""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.cluster.build import why_no_go
from tests.cluster.components import Component, needed
from tests.cluster.errors import Unavailable
from tests.cluster.layout import CNI, HOME, LINK, NODE_NET, POD_NET, SERVICE_NET
from tests.cluster.processes import PATH, run

MEMORY = 4  # GB that three nodes and all operators may take before any pod does
DISK = 3  # GB for what a cluster writes
PATIENCE = 3600  # seconds that a second caller waits for the first, which may be building
PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
    "openssl": "openssl",
    "debootstrap": "debootstrap",
    "hostname": "hostname",
}
_GIGABYTE = 1 << 30


def why_not(trainer: str = "2.2") -> str:
    """Why no cluster can be had here, and what to do; empty if one can."""
    checks: tuple[Callable[[], str], ...] = (
        _no_linux,
        _no_root,
        _packages_missing,
        lambda: _nothing_to_build_with(needed(trainer)),
        _too_little,
        _on_overlay,
        _addresses_taken,
    )
    for check in checks:
        found = check()
        if found:
            return found
    return ""


@contextmanager
def alone(verb: str, say: Callable[[str], None]) -> Iterator[None]:
    """Only one `up` or `down` at a time; a second waits, and says for whom."""
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / "lock").open("a+") as file:
        _lock(file, say)
        file.truncate(0)
        file.write(f"`{verb}` of process {os.getpid()}")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)  # who comes next is not told of us


def _lock(file: IO[str], say: Callable[[str], None]) -> None:
    end, told = time.monotonic() + PATIENCE, False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            file.seek(0)
            holder = file.read()
        if holder and not told:  # it writes that a moment after it has the lock
            say(f"waiting for {holder}, which is at work on the cluster (up to {PATIENCE // 60} minutes)")
            told = True
        if time.monotonic() > end:
            raise Unavailable(
                f"waited {PATIENCE // 60} minutes for {holder or 'another process'}, which is at work on the cluster"
            )
        time.sleep(0.2)


def _no_linux() -> str:
    return "" if sys.platform == "linux" else f"The cluster needs Linux; this is {sys.platform}."


def _no_root() -> str:
    if os.geteuid() == 0:
        return ""
    return (
        f"The cluster needs root, for namespaces, mounts and control groups; this is user {os.geteuid()}. Try sudo -E."
    )


def _packages_missing() -> str:
    missing = {package for tool, package in PACKAGES.items() if shutil.which(tool, path=PATH) is None}
    if not (CNI / "bridge").exists():
        missing.add("containernetworking-plugins")
    if not missing:
        return ""
    names = " ".join(sorted(missing))
    return f"The cluster needs programs that are not here. On Debian: apt-get install --no-install-recommends {names}"


def _nothing_to_build_with(components: Iterable[Component]) -> str:
    return "" if all(component.built for component in components) else why_no_go()


def _too_little() -> str:
    available = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable")
    )
    if available < MEMORY * _GIGABYTE:
        return f"The cluster needs {MEMORY} GB of memory; {available / _GIGABYTE:.1f} GB are available."
    free = shutil.disk_usage(_there(HOME)).free
    if free < DISK * _GIGABYTE:
        return (
            f"The cluster needs {DISK} GB free at {HOME}; {free / _GIGABYTE:.1f} GB are.\n"
            "Free some, or name another place in ALLRANKS_CLUSTER_HOME."
        )
    return ""


def _there(path: Path) -> Path:
    return path if path.exists() else _there(path.parent)


def _on_overlay() -> str:
    """Containers' root file systems are overlays, which cannot lie on another one."""
    kind = run("stat", "--file-system", "--format=%T", _there(HOME)).strip()
    if kind not in ("overlayfs", "tmpfs", "nfs"):
        return ""
    return f"Containers cannot be kept at {HOME}, which is on {kind}. Name a place on a disk in ALLRANKS_CLUSTER_HOME."


def _addresses_taken() -> str:
    """By a route of the machine's other links."""
    ours = [ipaddress.ip_network(net) for net in (NODE_NET, POD_NET, SERVICE_NET)]
    for route in json.loads(run("ip", "-j", "-4", "route", "show", "table", "all") or "[]"):
        if route["dst"] == "default" or route.get("dev") == LINK:
            continue
        taken = ipaddress.ip_network(route["dst"], strict=False)
        for net in ours:
            if net.overlaps(taken):
                return f"The cluster uses {net}, and this machine has a route to {taken} by {route.get('dev', '?')}."
    return ""
