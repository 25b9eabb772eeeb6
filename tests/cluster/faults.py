"""What can go wrong in a cluster, as functions on the running one. Each has its undoing beside it."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.cluster import plane, pods
from tests.cluster.cluster import Cluster
from tests.cluster.errors import CannotInject, ClusterError
from tests.cluster.layout import PRIVATE
from tests.cluster.processes import run, wait
from tests.cluster.world import WORLD

FILLER = ".filler"


def power_off(cluster: Cluster, node: str) -> None:
    """The node is gone at once, with all its pods; nobody is told, not even by a closed connection."""
    cluster.node(node).lose_power()


def power_on(cluster: Cluster, node: str) -> None:
    """It boots again with the disk that it had; returns when the kubelet has been started."""
    cluster.node(node).boot(cluster.nodes, [])


@contextmanager
def kubelet_stopped(cluster: Cluster, node: str) -> Iterator[None]:
    """Pods go on, and nobody looks after them."""
    init = cluster.node(node).init
    init.stop("kubelet")
    try:
        yield
    finally:
        init.again("kubelet")


def drain(cluster: Cluster, node: str, grace: int = -1, seconds: float = 120) -> None:
    """Cordon it and evict its pods; ``grace`` overrides the pods' own grace period (seconds)."""
    options = ["--ignore-daemonsets", "--delete-emptydir-data", "--force", f"--timeout={seconds:g}s"]
    cluster.kubectl("drain", node, *options, f"--grace-period={grace}", seconds=seconds + 10)


def cordon(cluster: Cluster, node: str) -> None:
    """No new pods for it."""
    cluster.kubectl("cordon", node)


def uncordon(cluster: Cluster, node: str) -> None:
    """Undo a cordon or a drain."""
    cluster.kubectl("uncordon", node)


def cut(cluster: Cluster, node: str) -> None:
    """Pull the node's cable: no packet goes in or out, and it knows of no reason."""
    cluster.node(node)
    WORLD.run("ip", "link", "set", node, "down")


def heal(cluster: Cluster, node: str) -> None:
    """Plug the node's cable in again, and have it at full speed."""
    WORLD.run("ip", "link", "set", node, "up")
    _full_speed(WORLD.pid(), node)
    _full_speed(cluster.node(node).init.pid(), "eth0")


def slow(cluster: Cluster, node: str, mbit: float = 0, delay: float = 0) -> None:
    """Let the node's cable carry ``mbit`` Mbit/s each way, and take ``delay`` ms longer each way; 0 is unchanged.

    Raises:
        CannotInject: a delay was asked for and the kernel has no netem.
    """
    _slow(WORLD.pid(), node, mbit, delay)
    _slow(cluster.node(node).init.pid(), "eth0", mbit, delay)


def cut_pod(cluster: Cluster, pod: str, namespace: str = "default") -> None:
    """As ``cut``, for one pod."""
    found = pods.find(cluster, pod, namespace)
    found.node.init.run("ip", "link", "set", found.link(), "down")


def heal_pod(cluster: Cluster, pod: str, namespace: str = "default") -> None:
    """As ``heal``, for one pod."""
    found = pods.find(cluster, pod, namespace)
    found.node.init.run("ip", "link", "set", found.link(), "up")
    _full_speed(found.node.init.pid(), found.link())
    _full_speed(found.first, "eth0")


def slow_pod(cluster: Cluster, pod: str, namespace: str = "default", mbit: float = 0, delay: float = 0) -> None:
    """As ``slow``, for one pod."""
    found = pods.find(cluster, pod, namespace)
    _slow(found.node.init.pid(), found.link(), mbit, delay)
    _slow(found.first, "eth0", mbit, delay)


def kill(
    cluster: Cluster,
    pod: str,
    pid: int = 1,
    number: int = signal.SIGKILL,
    namespace: str = "default",
    container: str = "",
) -> None:
    """Send a signal to a process by its number inside the container; from outside even the first one can be killed."""
    found = pods.find(cluster, pod, namespace, container)
    if pid not in found.processes:
        raise ClusterError(f"no process {pid} in {namespace}/{pod}; there are {sorted(found.processes)}")
    os.kill(found.processes[pid], number)


def fill_pod(cluster: Cluster, pod: str, path: str, namespace: str = "default", megabytes: int = 8) -> None:
    """A disk of that size appears over the container's folder ``path``, and is full: its files are not seen."""
    found = pods.find(cluster, pod, namespace)
    where = f"/proc/{found.first}/ns/mnt"
    run("mount", "--namespace", where, "-t", "tmpfs", "-o", f"size={megabytes}m,mode=1777", "full", path)
    _fill(Path(f"/proc/{found.first}/root{path}", FILLER))


def empty_pod(cluster: Cluster, pod: str, path: str, namespace: str = "default") -> None:
    """That disk has room again; it stays as long as the container."""
    Path(f"/proc/{pods.find(cluster, pod, namespace).first}/root{path}", FILLER).unlink(missing_ok=True)


def fill_node(cluster: Cluster, node: str) -> None:
    """Fill the disk that holds the volumes of the node's pods; the kubelet reports DiskPressure and evicts."""
    _fill(_disk(cluster, node) / FILLER)


def empty_node(cluster: Cluster, node: str) -> None:
    """Remove what fills the node's disk."""
    (_disk(cluster, node) / FILLER).unlink(missing_ok=True)


@contextmanager
def patient(cluster: Cluster) -> Iterator[None]:
    """A silent node is taken for lost after Kubernetes' own 50 s, not after this cluster's short time."""
    plane.start_controller_manager(silence=50)
    try:
        yield
    finally:
        plane.start_controller_manager()


@contextmanager
def stopped(cluster: Cluster, *names: str) -> Iterator[None]:
    """Some of the control plane or the operators do not run, such as "kube-apiserver" or "mpi-operator"."""
    for name in names:
        WORLD.stop(name)
    try:
        yield
    finally:
        for name in names:
            WORLD.again(name)
        if "kube-apiserver" in names:
            wait("the API server", lambda: cluster.api("/readyz") == "ok", 60)


def restart(cluster: Cluster, *names: str) -> None:
    """Stop them and start them again."""
    with stopped(cluster, *names):
        pass


def delete(cluster: Cluster, path: str) -> None:
    """Delete an object behind everyone's back: at once, with no grace and whatever its finalizers say."""
    with suppress(ClusterError):
        cluster.api(path, {"metadata": {"finalizers": None}}, "PATCH", "application/merge-patch+json")
    cluster.api(path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}, "DELETE")


def _disk(cluster: Cluster, node: str) -> Path:
    cluster.node(node)
    return Path(f"/proc/{WORLD.pid()}/root{PRIVATE}", node)


def _fill(path: Path) -> None:
    block = b"\0" * (1 << 20)
    with path.open("ab", buffering=0) as file:
        try:
            while file.write(block):
                pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def _slow(pid: int | None, link: str, mbit: float, delay: float) -> None:
    if delay:
        kind = ["netem", "delay", f"{delay}ms", *(["rate", f"{mbit}mbit"] if mbit else [])]
    else:
        kind = ["tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "200ms"]
    try:
        run("nsenter", "-t", pid, "-n", "tc", "qdisc", "replace", "dev", link, "root", *kind)
    except ClusterError as error:
        raise CannotInject(f"this kernel cannot do `tc qdisc … {' '.join(kind)}`: {error}") from error


def _full_speed(pid: int | None, link: str) -> None:
    run("nsenter", "-t", pid, "-n", "tc", "qdisc", "del", "dev", link, "root", check=False)
