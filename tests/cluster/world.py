"""The namespaces that the whole cluster lives in: processes, mounts and network, all gone when the first process dies.

The machine keeps one link to it (``LINK``), the routes through that, the control groups and the folder ``RUN``.
Inside, /etc, /var, /tmp and /run are the machine's with a tmpfs over them: operators have paths of their own there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.cluster import cgroups
from tests.cluster.errors import Unavailable
from tests.cluster.layout import (
    CHECKOUT,
    CONTROL_IP,
    HOME,
    LINK,
    LOG,
    MACHINE_IP,
    MOUNTS,
    POD_NET,
    PRIVATE,
    PYTHON,
    RUN,
    WORLD_SOCKET,
    node_ip,
    pod_net,
)
from tests.cluster.processes import Init, run, tail, wait

INIT = Path(__file__).with_name("init.py")
WORLD = Init(WORLD_SOCKET)
OVERLAID = ("/etc", "/var", "/tmp", "/run")
NODE_FOLDERS = ("/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni", "/var/log/pods", "/var/log/containers")
NODE_DISK = "1g"  # what a node has for its pods' volumes, in memory as far as it is used


def start(nodes: Sequence[str]) -> None:
    """Make the namespaces, and the way to them."""
    PRIVATE.mkdir()
    namespaces = ("--mount", "--propagation", "private", "--net", "--pid", "--ipc", "--fork", "--mount-proc")
    argv = ["unshare", *namespaces, "--kill-child=SIGKILL", str(PYTHON), "-I", str(INIT)]
    with (LOG / "init.log").open("ab") as log:
        child = subprocess.Popen(
            [*argv, str(WORLD_SOCKET), json.dumps(_setup(nodes))],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def listening() -> int | None:
        if child.poll() is not None:
            raise Unavailable(f"the cluster's first process ended: {tail(LOG / 'init.log')}")
        return WORLD.pid()

    pid = wait("the cluster's first process", listening, 60)
    _connect(pid, nodes)


def stop() -> None:
    """End everything in the namespaces, however far a start had come, and remove what is left on the machine."""
    for pid in _processes():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    wait("the end of the cluster's processes", lambda: not _processes(), 60)
    _remove_link()
    cgroups.remove()
    _remove_run()


def remnants() -> bool:
    """Whether a start has left anything."""
    return RUN.exists() or bool(_processes()) or Path("/sys/class/net", LINK).exists() or cgroups.exist()


def _processes() -> list[int]:
    """Those that have the socket's path as an argument: known from their first instant, whoever started them."""
    socket = os.fsencode(WORLD_SOCKET)
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            argv = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if socket in argv and any(Path(os.fsdecode(word)).name == INIT.name for word in argv):
            found.append(int(folder.name))
    return found


def _setup(nodes: Sequence[str]) -> list[list[str]]:
    kept = _below_overlays([HOME, CHECKOUT, *MOUNTS])
    commands = [f"mount -t tmpfs -o size=1g,mode=755 tmpfs {PRIVATE}".split()]
    for number, path in enumerate(kept):
        aside = PRIVATE / f"kept-{number}"
        commands += [["mkdir", str(aside)], ["mount", "--rbind", str(path), str(aside)]]
    for folder in OVERLAID:
        commands += _overlay(Path(folder))
    for number, path in enumerate(kept):
        commands += [["mkdir", "-p", str(path)], ["mount", "--rbind", str(PRIVATE / f"kept-{number}"), str(path)]]
    commands.append(["mkdir", "-p", *NODE_FOLDERS, "/run/containerd", "/etc/cni"])
    for node in nodes:
        disk = str(PRIVATE / node)
        options = f"size={NODE_DISK},mode=755"
        commands += [["mkdir", disk], ["mount", "-t", "tmpfs", "-o", options, node, disk]]
    return commands + _network(nodes)


def _below_overlays(paths: Sequence[Path]) -> list[Path]:
    """Those that an overlay would hide: they are mounted over it again, as they are."""
    return [path for path in dict.fromkeys(paths) if any(path.is_relative_to(folder) for folder in OVERLAID)]


def _overlay(folder: Path) -> list[list[str]]:
    upper, work = PRIVATE / "upper" / folder.name, PRIVATE / "work" / folder.name
    mode = f"{folder.stat().st_mode & 0o7777:o}"
    options = f"lowerdir={folder},upperdir={upper},workdir={work}"
    return [
        ["mkdir", "-p", str(upper), str(work)],
        ["chmod", mode, str(upper)],
        ["mount", "-t", "overlay", "-o", options, "overlay", str(folder)],
    ]


def _network(nodes: Sequence[str]) -> list[list[str]]:
    commands = [
        "ip link set lo up",
        "ip link add br0 type bridge",
        f"ip addr add {CONTROL_IP}/24 dev br0",
        "ip link set br0 up",
        *(f"ip route add {pod_net(node)} via {node_ip(node)}" for node in nodes),
    ]
    return [*(command.split() for command in commands), ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]]


def _connect(pid: int, nodes: Sequence[str]) -> None:
    commands = [
        f"link add {LINK} type veth peer name machine netns {pid}",
        f"addr add {MACHINE_IP}/24 dev {LINK}",
        f"link set {LINK} up",
        f"route add {POD_NET} via {CONTROL_IP}",
    ]
    run("nsenter", "-t", pid, "-n", "ip", "link", "show", "br0")
    run("ip", "-batch", "-", text="\n".join(commands))
    WORLD.run("ip", "link", "set", "machine", "master", "br0", "up")


def _remove_link() -> None:
    """It goes with the namespace of its other end, which the kernel does a moment after the last process."""
    there = Path("/sys/class/net", LINK)
    if there.exists():
        run("ip", "link", "del", LINK, check=False)
    wait(f"the end of the link {LINK}", lambda: not there.exists(), 30)


def _remove_run() -> None:
    if RUN.exists():
        shutil.rmtree(RUN)
