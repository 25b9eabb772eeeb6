"""One node: namespaces of its own inside the cluster's, with its own containerd, kubelet and kube-proxy."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.cluster import cgroups
from tests.cluster.components import K8S
from tests.cluster.errors import Unavailable
from tests.cluster.layout import (
    CONTROL_IP,
    LOG,
    NODES,
    PRIVATE,
    PYTHON,
    RUN,
    node_ip,
    node_socket,
    pod_net,
)
from tests.cluster.node_config import containerd, kube_proxy, kubelet, pod_network
from tests.cluster.processes import Init, run, tail, wait
from tests.cluster.world import INIT, WORLD

# The kubelet would set these for the whole machine; it finds them as it wants them.
SYSCTLS = {
    "vm/overcommit_memory": 1,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}


class Node:
    """``n1``, ``n2``…; what it keeps over a power loss is in ``folder``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.init = Init(node_socket(name))
        self.folder = NODES / name
        self.log = LOG / name

    def configure(self) -> None:
        """Write its configuration; once."""
        for name in ("containerd", "cni", "pods", "containers", "etc-cni/net.d", "sysctl"):
            (self.folder / name).mkdir(parents=True)
        self.log.mkdir()
        for number, value in enumerate(SYSCTLS.values()):
            (self.folder / "sysctl" / str(number)).write_text(f"{value}\n")
        (self.folder / "etc-cni/net.d/10-allranks.conflist").write_text(json.dumps(pod_network(self.name)))
        (self.folder / "containerd.toml").write_text(containerd())
        (self.folder / "kubelet.json").write_text(json.dumps(kubelet(self.name)))
        (self.folder / "kube-proxy.json").write_text(json.dumps(kube_proxy()))

    def boot(self, peers: list[str], images: list[Path]) -> None:
        """Power on: up to a kubelet that registers the node."""
        cgroups.make(self.name)
        self.init.path.unlink(missing_ok=True)
        namespaces = ["--mount", "--propagation", "private", "--net", "--pid", "--uts", "--mount-proc"]
        argv: list[object] = ["unshare", *namespaces, "--fork", "--kill-child=SIGKILL"]
        argv += [PYTHON, "-I", INIT, self.init.path, json.dumps(self._setup())]
        WORLD.start(self.name, argv, self._log("init"), keep=False)
        pid = wait(f"the first process of {self.name}", self._listening, 60)
        self._plug(pid, peers)
        runtime = ["containerd", "--config", self.folder / "containerd.toml"]
        self.init.start("containerd", runtime, self._log("containerd"))
        self._await_containerd()
        for image in images:
            self.import_image(image)
        self.start_kubelet()
        proxy = [K8S.binary("kube-proxy"), "--config", self.folder / "kube-proxy.json"]
        proxy += ["--hostname-override", self.name]
        self.init.start("kube-proxy", proxy, self._log("kube-proxy"))

    def start_kubelet(self) -> None:
        """Have the kubelet run."""
        argv = [K8S.binary("kubelet"), "--config", self.folder / "kubelet.json"]
        argv += ["--kubeconfig", RUN / f"{self.name}.kubeconfig", "--hostname-override", self.name]
        argv += ["--node-ip", node_ip(self.name), "--v=1"]
        self.init.start("kubelet", argv, self._log("kubelet"))

    def restart_containerd(self) -> None:
        """It reads the base specs only when it starts; running containers stay."""
        self.init.stop("containerd")
        self.init.again("containerd")
        self._await_containerd()

    def import_image(self, archive: Path) -> str:
        """Load an image (docker-archive or OCI tar); what containerd says."""
        return self.init.run("ctr", "-n", "k8s.io", "images", "import", archive, seconds=300)

    def lose_power(self) -> None:
        """The cable first: a dying network namespace still tells every peer that its connections are closed."""
        WORLD.run("ip", "link", "del", self.name, check=False)
        pid = self.init.pid()
        if pid is not None:
            os.kill(pid, 9)
        wait(f"the end of {self.name}", lambda: WORLD.children()[self.name]["pid"] is None, 30)
        cgroups.remove(self.name)

    def _await_containerd(self) -> None:
        wait(f"containerd of {self.name}", lambda: self.init.run("ctr", "version"), 60)

    def _listening(self) -> int | None:
        if WORLD.children()[self.name]["pid"] is None:
            raise Unavailable(f"the first process of {self.name} ended: {tail(self.log / 'init.log')}")
        return self.init.pid()

    def _plug(self, pid: int, peers: list[str]) -> None:
        """Its one link, to the cluster's bridge, and the ways to the other nodes' pods."""
        plug = [f"link add {self.name} type veth peer name eth0 netns {pid}", f"link set {self.name} master br0 up"]
        run("nsenter", "-t", WORLD.pid(), "-n", "ip", "-batch", "-", text="\n".join(plug))
        inside = [
            f"addr add {node_ip(self.name)}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {CONTROL_IP}",
            *(f"route add {pod_net(peer)} via {node_ip(peer)}" for peer in peers if peer != self.name),
        ]
        run("nsenter", "-t", pid, "-n", "ip", "-batch", "-", text="\n".join(inside))

    def _log(self, name: str) -> Path:
        return self.log / f"{name}.log"

    def _setup(self) -> list[list[str]]:
        over = {
            PRIVATE / self.name: "/var/lib/kubelet",
            self.folder / "containerd": "/var/lib/containerd",
            self.folder / "cni": "/var/lib/cni",
            self.folder / "pods": "/var/log/pods",
            self.folder / "containers": "/var/log/containers",
            self.folder / "etc-cni": "/etc/cni",
            **{self.folder / "sysctl" / str(n): f"/proc/sys/{name}" for n, name in enumerate(SYSCTLS)},
        }
        kernel = {"ip_forward": 1, "conf/all/rp_filter": 0}
        return [
            ["hostname", self.name],
            ["mount", "--make-rshared", "/"],  # as the kubelet wants it, for this node alone
            ["mount", "-t", "tmpfs", "tmpfs", "/run/containerd"],
            *(["mount", "--bind", str(source), target] for source, target in over.items()),
            ["ip", "link", "set", "lo", "up"],
            *(["sh", "-c", f"echo {value} > /proc/sys/net/ipv4/{name}"] for name, value in kernel.items()),
            ["sh", "-c", "! cd /proc/sys/net/bridge || echo 1 > bridge-nf-call-iptables"],
        ]
