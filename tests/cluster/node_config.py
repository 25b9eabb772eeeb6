"""How containerd, the kubelet, kube-proxy and the pod network of a node are configured."""

from __future__ import annotations

import json
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cluster.layout import CGROUP, CNI, CONTROL_IP, PKI, POD_NET, RUN, node_ip, pod_net
from tests.cluster.processes import run

PAUSE = "docker.io/allranks/pause:1"
UNUSED = (
    "snapshotter.v1.aufs",
    "snapshotter.v1.btrfs",
    "snapshotter.v1.devmapper",
    "snapshotter.v1.zfs",
    "internal.v1.opt",
)
READ_ONLY = ["rbind", "ro", "rprivate"]


def write_base_specs(mounts: Mapping[str, Path]) -> None:
    """What every container starts from: of `plain` nothing of the machine, of the default runtime ``mounts``.

    These are read-only, and given by where the container sees them.
    """
    spec: dict[str, Any] = json.loads(run("ctr", "oci", "spec"))
    most = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 1 << 20)  # containerd's own choice is 1024
    spec["process"]["rlimits"] = [{"type": "RLIMIT_NOFILE", "hard": most, "soft": most}]
    (RUN / "plain-spec.json").write_text(json.dumps(spec))
    spec["mounts"] += [
        {"destination": at, "type": "bind", "source": str(source), "options": READ_ONLY}
        for at, source in mounts.items()
    ]
    made = RUN / "base-spec.part"
    made.write_text(json.dumps(spec))
    made.rename(RUN / "base-spec.json")


def mounted() -> dict[str, Path]:
    """The mounts of the default runtime."""
    spec = json.loads((RUN / "base-spec.json").read_text())
    return {one["destination"]: Path(one["source"]) for one in spec["mounts"] if one.get("options") == READ_ONLY}


def containerd() -> str:
    """Its configuration: the two runtimes, and what it needs inside a namespace."""
    runtimes = "".join(
        f"""
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
      runtime_type = "io.containerd.runc.v2"
      base_runtime_spec = "{RUN}/{spec}-spec.json"
"""
        for name, spec in (("runc", "base"), ("plain", "plain"))
    )
    unused = [f"io.containerd.{name}" for name in UNUSED]
    return f"""version = 2
oom_score = 0
disabled_plugins = {json.dumps(unused)}
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true  # lowering it needs CAP_SYS_RESOURCE, which not every root has
  netns_mounts_under_state_dir = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
{runtimes}
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI}"
    conf_dir = "/etc/cni/net.d"
"""


def pod_network(node: str) -> dict[str, Any]:
    """For CNI: a bridge a node, addresses of its own, no way out of the cluster."""
    addresses = {"type": "host-local", "ranges": [[{"subnet": pod_net(node)}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": addresses}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "allranks", "plugins": [bridge, ports]}


def kubelet(node: str) -> dict[str, Any]:
    """Reports often, so that tests of lost nodes need not wait long; never removes an image."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node_ip(node),
        "readOnlyPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{PKI}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{PKI}/{node}.crt",
        "tlsPrivateKeyFile": f"{PKI}/{node}.key",
        "clusterDNS": [CONTROL_IP],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{RUN}/resolv.conf",  # empty: pods never see the machine's resolver
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CGROUP}/{node}",
        "failSwapOn": False,
        "failCgroupV1": False,
        "oomScoreAdj": 0,
        "imageGCHighThresholdPercent": 100,  # nothing can be pulled again
        "evictionHard": {"memory.available": "200Mi", "nodefs.available": "5%", "imagefs.available": "1%"},
        "evictionPressureTransitionPeriod": "5s",
        "nodeStatusUpdateFrequency": "4s",
        "nodeLeaseDurationSeconds": 12,
        "syncFrequency": "10s",
        "maxPods": 60,
        "registryPullQPS": 0,
        "kubeAPIQPS": 50,
        "kubeAPIBurst": 100,
    }


def kube_proxy() -> dict[str, Any]:
    """By iptables, in the node's network namespace."""
    nothing = {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": POD_NET,
        "clientConnection": {"kubeconfig": f"{RUN}/kube-proxy.kubeconfig"},
        "conntrack": nothing,  # leave the kernel's settings alone
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    }
