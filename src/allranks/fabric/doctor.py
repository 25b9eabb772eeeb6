"""What is wrong with this host or pod for a gang: each finding with what, where, why it matters, and the fix.

Everything is read, nothing changed, and only what is known to break or slow training is told: a doctor who cries
wolf is not asked again.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Dict, Iterator, List, Mapping, Optional

from allranks.fabric.acs import redirecting_bridges
from allranks.fabric.decide import Finding
from allranks.fabric.devices import Host, read_host
from allranks.fabric.report import decision
from allranks.fabric.tree import Tree
from allranks.fabric.version import find_package, find_version, shown

PACKAGES = ("torch", "deepspeed", "transformers", "numpy")
NVIDIA, DISPLAY = "0x10de", ("0x0300", "0x0302")
ENOUGH_SHM, ENOUGH_DISK, ENOUGH_FILES = 1 << 30, 1 << 30, 1024
OPEN_MODULE = "Open Kernel Module"
"""NVIDIA's open module gives dmabuf, so that NCCL needs no nvidia_peermem (NCCL 2.13, kernel 5.12 or newer)."""


@dataclass(frozen=True)
class Needs:
    """What the gang asks of a node: GPUs, how many ranks share it, RDMA as ``network.rdma``, folders to write in."""

    gpus: int = 0
    ranks: int = 1
    rdma: str = "auto"
    folders: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Limits:
    """This process's own: sizes in bytes, None where there is none."""

    shm: Optional[int]
    shm_free: Optional[int]
    files: Optional[int]
    disks: Mapping[str, int]

    @classmethod
    def read(cls, folders: Mapping[str, str]) -> Limits:
        import resource

        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        size = _space("/dev/shm")
        free = {what: space[1] for what, path in folders.items() for space in (_space(path),) if space}
        infinite = files == resource.RLIM_INFINITY
        return cls(size[0] if size else None, size[1] if size else None, None if infinite else files, free)


def _space(path: str) -> Optional[List[int]]:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return [found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize]


def examine(tree: Tree, env: Mapping[str, str], python: str, needs: Needs, limits: Limits) -> List[Finding]:
    """All findings of one host. ``env`` is what its ranks have, ``python`` their interpreter."""
    host = read_host(tree)
    return [
        *_gpus(tree, needs),
        *_direct(tree, host),
        *_shared_memory(limits, needs),
        *_limits(limits),
        *_disks(limits),
        *(one for one in decision(tree, env, python, needs.rdma).findings if one.level != "note"),
    ]


def facts(tree: Tree, env: Mapping[str, str], python: str) -> Dict[str, str]:
    """What must be the same on all nodes; only what could be read."""
    found = {name: find_package(tree, python, env, name) for name in PACKAGES}
    nccl, driver = find_version(tree, python, env), _driver(tree)
    found["NCCL"] = shown(nccl) if nccl else None
    found["GPU driver"] = driver or None
    found["GPUs"] = str(_count(tree)) if driver else None
    host = read_host(tree)
    route = [netdev.name for netdev in host.netdevs if netdev.has_default_route]
    found["MTU"] = tree.read(f"sys/class/net/{route[0]}/mtu") if route else None
    found["fabric"] = host.kind
    return {name: value for name, value in found.items() if value}


# ---- GPUs


def _driver(tree: Tree) -> str:
    text = tree.read("proc/driver/nvidia/version") or ""
    found = re.search(r"(?:Kernel Module(?: for \S+)?)\s+(\d+\.[\d.]+)", text)
    return found.group(1) if found else ""


def _count(tree: Tree) -> int:
    return sum(re.fullmatch(r"nvidia\d+", name) is not None for name in tree.names("dev"))


def _cards(tree: Tree) -> int:
    """NVIDIA GPUs on the PCI bus: a pod sees those of its host."""
    devices = (f"sys/bus/pci/devices/{name}" for name in tree.names("sys/bus/pci/devices"))
    return sum(
        tree.read(f"{at}/vendor") == NVIDIA and (tree.read(f"{at}/class") or "")[:6] in DISPLAY for at in devices
    )


def _gpus(tree: Tree, needs: Needs) -> Iterator[Finding]:
    """What NVIDIA's GPU Operator, or whoever set the host up, should have put here."""
    here, cards, driver = _count(tree), _cards(tree), _driver(tree)
    if needs.gpus and here < needs.gpus:
        fix = "resources: {gpus: %d}, and the cluster's device plugin: kubectl get nodes -o yaml | grep nvidia.com/gpu"
        why = "each rank wants a GPU of its own; those without one end with 'invalid device ordinal'"
        what = f"{here} of {needs.gpus} GPUs are here" + (f", {cards} are on the PCI bus" if cards else "")
        yield Finding("error", "GPUs", what, fix % needs.gpus, why)
    elif cards and not driver:
        what = f"{cards} NVIDIA GPUs are on the PCI bus, and no driver is loaded"
        yield Finding("warning", "GPU driver", what, "nvidia-smi; modprobe nvidia", "CUDA sees no GPU without it")
    if here and tree.has("dev") and not tree.has("dev/nvidia-uvm"):
        what = "/dev/nvidia-uvm is missing"
        yield Finding("error", "GPU driver", what, "nvidia-modprobe -u -c=0", "CUDA fails to initialise without it")


def _direct(tree: Tree, host: Host) -> Iterator[Finding]:
    """RDMA straight into GPU memory, where there are both."""
    usable = any(not host.why_not(port) for port in host.ports)
    if not usable or not _count(tree):
        return
    peermem = tree.has("sys/module/nvidia_peermem") or tree.has("sys/kernel/mm/memory_peers/nv_mem")
    if not peermem and OPEN_MODULE not in (tree.read("proc/driver/nvidia/version") or ""):
        what = "neither nvidia_peermem is loaded nor does the driver have dmabuf"
        why = "NCCL copies through host memory instead of RDMA into the GPU: often a half of the bandwidth"
        yield Finding("warning", "GPUDirect RDMA", what, "modprobe nvidia_peermem, or NVIDIA's open kernel module", why)
    bridges = redirecting_bridges(tree)
    if bridges:
        what = f"ACS redirects peer traffic on {len(bridges)} PCI bridges ({', '.join(bridges[:3])})"
        why = "GPU and NIC then talk through the root complex: slow, and with GPUDirect known to hang (NVIDIA/nccl#214)"
        yield Finding("warning", "PCI ACS", what, f"setpci -s {bridges[0]} ECAP_ACS+0x6.w=0, or off in the BIOS", why)


# ---- limits of this process, and space


def _shared_memory(limits: Limits, needs: Needs) -> Iterator[Finding]:
    if limits.shm is None or needs.ranks < 2:
        return
    why = "NCCL and data loaders share memory there: 'No space left on device', or a bus error"
    if limits.shm < ENOUGH_SHM:
        what = f"/dev/shm holds {limits.shm >> 20} MiB"
        yield Finding("warning", "/dev/shm", what, "resources: {shm: 16Gi}; docker run --shm-size=16g", why)
    elif limits.shm_free is not None and limits.shm_free < ENOUGH_SHM // 8:
        what = f"/dev/shm has {limits.shm_free >> 20} MiB left of {limits.shm >> 20}"
        yield Finding("warning", "/dev/shm", what, "rm /dev/shm/nccl-* of runs that are over", why)


def _limits(limits: Limits) -> Iterator[Finding]:
    if limits.files is not None and limits.files < ENOUGH_FILES:
        what = f"a process may open {limits.files} files"
        why = "every peer costs NCCL and gloo several sockets"
        yield Finding("warning", "ulimit -n", what, "ulimit -n 65536; in a pod: the runtime's LimitNOFILE", why)


def _disks(limits: Limits) -> Iterator[Finding]:
    for what, free in limits.disks.items():
        if free < ENOUGH_DISK:
            why = "a full disk ends ranks in the midst of a checkpoint, and loses their output"
            yield Finding("warning", what, f"{free >> 20} MiB are free", f"df -h; make room for {what}", why)
