"""The control plane and cluster DNS, as processes in the cluster's namespaces."""

from __future__ import annotations

from tests.cluster.components import COREDNS, ETCD, K8S
from tests.cluster.layout import CONTROL_IP, KUBECONFIG, LOG, PKI, RUN, SERVICE_NET
from tests.cluster.world import WORLD

ETCD_URL = "http://127.0.0.1:2379"
SILENCE, EVICTION = 16, 5  # seconds to NotReady, and from there to eviction; Kubernetes' own are 50 and 300

COREFILE = f"""cluster.local in-addr.arpa ip6.arpa {{
    bind {CONTROL_IP}
    errors
    ready {CONTROL_IP}:8181
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {KUBECONFIG}
        pods insecure
        ttl 1
    }}
}}
. {{
    bind {CONTROL_IP}
    template ANY ANY . {{
        rcode NXDOMAIN
    }}
}}
"""


def start_etcd() -> None:
    """In memory as far as the kernel likes: a cluster that goes is gone."""
    _start(
        "etcd",
        ETCD.binary(),
        data_dir=RUN / "etcd",
        listen_client_urls=ETCD_URL,
        advertise_client_urls=ETCD_URL,
        unsafe_no_fsync=True,
        log_level="warn",
    )


def start_apiserver() -> None:
    """With Node and RBAC authorization, so that ServiceAccounts may do only what Roles say."""
    _start(
        "kube-apiserver",
        K8S.binary("kube-apiserver"),
        etcd_servers=ETCD_URL,
        bind_address=CONTROL_IP,
        advertise_address=CONTROL_IP,
        secure_port=6443,
        service_cluster_ip_range=SERVICE_NET,
        authorization_mode="Node,RBAC",
        enable_admission_plugins="NodeRestriction",
        allow_privileged=True,
        client_ca_file=PKI / "ca.crt",
        tls_cert_file=PKI / "apiserver.crt",
        tls_private_key_file=PKI / "apiserver.key",
        kubelet_client_certificate=PKI / "admin.crt",
        kubelet_client_key=PKI / "admin.key",
        kubelet_certificate_authority=PKI / "ca.crt",
        kubelet_preferred_address_types="InternalIP",
        service_account_issuer="https://kubernetes.default.svc.cluster.local",
        service_account_key_file=PKI / "sa.pub",
        service_account_signing_key_file=PKI / "sa.key",
        requestheader_client_ca_file=PKI / "front-ca.crt",
        requestheader_allowed_names="front-proxy-client",
        requestheader_extra_headers_prefix="X-Remote-Extra-",
        requestheader_group_headers="X-Remote-Group",
        requestheader_username_headers="X-Remote-User",
        proxy_client_cert_file=PKI / "front.crt",
        proxy_client_key_file=PKI / "front.key",
        default_not_ready_toleration_seconds=EVICTION,
        default_unreachable_toleration_seconds=EVICTION,
        profiling=False,
        v=1,
    )


def start_controllers() -> None:
    """Controller manager, scheduler and DNS: what needs the API server."""
    start_controller_manager()
    _start("kube-scheduler", K8S.binary("kube-scheduler"), **_client("scheduler"))
    (RUN / "Corefile").write_text(COREFILE)
    _start("coredns", COREDNS.binary(), conf=RUN / "Corefile")


def start_controller_manager(silence: int = SILENCE) -> None:
    """Start it, or start it anew with so many seconds until a silent node is NotReady."""
    name = "kube-controller-manager"
    if name in WORLD.children():
        WORLD.stop(name)
    _start(
        name,
        K8S.binary("kube-controller-manager"),
        **_client("controller-manager"),
        use_service_account_credentials=True,
        root_ca_file=PKI / "ca.crt",
        service_account_private_key_file=PKI / "sa.key",
        cluster_signing_cert_file=PKI / "ca.crt",
        cluster_signing_key_file=PKI / "ca.key",
        node_monitor_grace_period=f"{silence}s",
        node_monitor_period="2s",
        kube_api_qps=200,
        kube_api_burst=400,
    )


def _client(user: str) -> dict[str, object]:
    file = RUN / f"{user}.kubeconfig"
    return {
        "kubeconfig": file,
        "authentication_kubeconfig": file,
        "authorization_kubeconfig": file,
        "leader_elect": False,
        "bind_address": "127.0.0.1",
        "v": 1,
    }


def _start(name: str, binary: object, **flags: object) -> None:
    words = [f"--{flag.replace('_', '-')}={_word(value)}" for flag, value in flags.items()]
    WORLD.start(name, [binary, *words], LOG / f"{name}.log")


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
