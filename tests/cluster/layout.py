"""Where everything of the cluster is: folders, names, addresses. There is one cluster a machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def _home() -> Path:
    """Outside the checkout, so that all checkouts share what was built; ``ALLRANKS_CLUSTER_HOME`` moves it."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("ALLRANKS_CLUSTER_HOME") or f"{cache}/allranks/cluster").expanduser().absolute()


# Read once, when imported: a test's own XDG_CACHE_HOME does not make it look for another cluster.
HOME = _home()
BIN = HOME / "bin"
MANIFESTS = HOME / "manifests"
RUN = HOME / "run"  # all of a running cluster; removed with it
LOG = RUN / "log"
PKI = RUN / "pki"
NODES = RUN / "nodes"
PRIVATE = RUN / "private"  # a tmpfs that only the cluster sees
WORLD_SOCKET = RUN / "init.sock"
KUBECONFIG = RUN / "admin.kubeconfig"
READY = RUN / "ready.json"

CHECKOUT = Path(__file__).resolve().parents[2]
PYTHON = Path(sys.executable)
CNI = Path("/usr/lib/cni")

LINK = "allranks-k8s"  # the machine's one link to the cluster
MACHINE_IP = "10.241.0.2"  # its address
CONTROL_IP = "10.241.0.1"  # where the API server, CoreDNS and the operators listen
NODE_NET = "10.241.0.0/24"
POD_NET = "10.245.0.0/16"
SERVICE_NET = "10.97.0.0/16"
SERVICE_IP = "10.97.0.1"  # of the Service `kubernetes`
API = f"https://{CONTROL_IP}:6443"
CGROUP = "allranks-cluster"

# What containers of the default runtime see of the machine, read-only (the runtime `plain` sees nothing).
MOUNTS = [
    Path(sys.base_prefix),
    Path(sys.prefix),
    CHECKOUT,
]


def node_ip(node: str) -> str:
    """``n1`` is 10.241.0.11."""
    return f"10.241.0.{10 + number(node)}"


def pod_net(node: str) -> str:
    """The addresses of the node's pods."""
    return f"10.245.{number(node)}.0/24"


def number(node: str) -> int:
    """1 for ``n1``."""
    return int(node[1:])


def node_socket(node: str) -> Path:
    """Where the node's first process listens."""
    return NODES / node / "init.sock"
