"""The operators, as processes in the cluster's namespaces, each with the configuration that it needs there.

They use the admin's kubeconfig: what their own ClusterRoles would allow is not tested.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from tests.cluster import manifests
from tests.cluster.api import Api
from tests.cluster.components import JOBSET, KUBERAY, KUEUE, MPI_OPERATOR, TRAINING_OPERATOR, Component
from tests.cluster.layout import CONTROL_IP, KUBECONFIG, LOG, PKI, RUN
from tests.cluster.pki import encoded
from tests.cluster.processes import wait
from tests.cluster.world import WORLD

# Paths that are in the binaries; they are in the namespaces only.
CERTIFICATES = ("/tmp/k8s-webhook-server/serving-certs", "/etc/kueue/metrics/certs")
SERVING = CERTIFICATES[0]
FRAMEWORKS = [
    "batch/job",
    "kubeflow.org/mpijob",
    "kubeflow.org/pytorchjob",
    "jobset.x-k8s.io/jobset",
    "trainer.kubeflow.org/trainjob",
    "ray.io/raycluster",
    "ray.io/rayjob",
    "ray.io/rayservice",
]


def install(api: Api, chosen: Sequence[Component]) -> list[dict[str, Any]]:
    """Their namespaces, CRDs and certificates. Returns the webhooks, for when those who answer them are up."""
    hooks: list[dict[str, Any]] = []
    crds: list[dict[str, Any]] = []
    for operator in chosen:
        its_crds, its_hooks = manifests.read(operator, encoded("webhook-ca.crt"))
        crds += its_crds
        hooks += its_hooks
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": operator.namespace}}
        api.call("/api/v1/namespaces", namespace)
    for crd in crds:
        api.call("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    if TRAINING_OPERATOR in chosen:
        api.call(f"/api/v1/namespaces/{TRAINING_OPERATOR.namespace}/secrets", _rotated())
    for folder in CERTIFICATES:
        WORLD.run("mkdir", "-p", folder)
        for file, name in (("webhook.crt", "tls.crt"), ("webhook.key", "tls.key"), ("webhook-ca.crt", "ca.crt")):
            WORLD.run("cp", PKI / file, f"{folder}/{name}")
    wait("the API server to serve the CRDs", lambda: _served(api, crds), 120)
    return hooks


def start(operator: Component) -> None:
    """Have it run."""
    argv = [operator.binary(), *ARGUMENTS[operator.name](operator)]
    WORLD.start(operator.name, argv, LOG / f"{operator.name}.log", {"KUBECONFIG": str(KUBECONFIG)})


def wait_until_well(chosen: Iterable[Component]) -> None:
    """Until each answers its health check."""
    for operator in chosen:
        wait(f"{operator.name} to be well (its log: {LOG / operator.name}.log)", partial(well, operator), 120)


def well(operator: Component) -> bool:
    """Whether it answers its health check."""
    with urllib.request.urlopen(f"http://{CONTROL_IP}{operator.health}", timeout=2) as answer:
        return bool(answer.status == 200)


def hook(api: Api, configurations: Iterable[dict[str, Any]]) -> None:
    """Install webhooks: from here on the API server refuses what they refuse."""
    for configuration in configurations:
        kind = configuration["kind"].lower() + "s"
        api.call(f"/apis/admissionregistration.k8s.io/v1/{kind}", configuration)


def _rotated() -> dict[str, Any]:
    """The Training Operator always rotates its certificate, unless it finds one that is good."""
    files = ("webhook-ca.crt", "webhook-ca.key", "webhook.crt", "webhook.key")
    data = dict(zip(("ca.crt", "ca.key", "tls.crt", "tls.key"), map(encoded, files), strict=True))
    metadata = {"name": "training-operator-webhook-cert", "namespace": TRAINING_OPERATOR.namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}


def _served(api: Api, crds: Iterable[dict[str, Any]]) -> bool:
    """In discovery: listing the CRDs themselves would move megabytes at each look."""
    wanted: dict[str, set[str]] = {}
    for crd in crds:
        for version in crd["spec"]["versions"]:
            if version["served"]:
                path = f"/apis/{crd['spec']['group']}/{version['name']}"
                wanted.setdefault(path, set()).add(crd["spec"]["names"]["plural"])
    return all(names <= {one["name"] for one in api.call(path)["resources"]} for path, names in wanted.items())


def _health(operator: Component) -> str:
    return f"{CONTROL_IP}{operator.health.partition('/')[0]}"


def _file(operator: Component, configuration: dict[str, Any]) -> str:
    path = RUN / f"{operator.name}.json"
    path.write_text(json.dumps({"kind": "Configuration", "leaderElection": {"leaderElect": False}, **configuration}))
    return f"--config={path}"


def _jobset(operator: Component) -> list[str]:
    configuration = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "internalCertManagement": {"enable": False},
        "health": {"healthProbeBindAddress": _health(operator)},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": operator.webhook_port, "certDir": SERVING},
    }
    # The flags' defaults win over the file.
    addresses = ["--metrics-bind-address=0", f"--health-probe-bind-address={_health(operator)}"]
    return [f"--kubeconfig={KUBECONFIG}", *addresses, _file(operator, configuration)]


def _mpi_operator(operator: Component) -> list[str]:
    lock = f"--lock-namespace={operator.namespace}"
    return [f"--kubeConfig={KUBECONFIG}", lock, "--kube-api-qps=50", "--kube-api-burst=100"]


def _trainer(operator: Component) -> list[str]:
    probes = {"readinessEndpointName": "readyz", "livenessEndpointName": "healthz"}
    configuration = {
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "certManagement": {"enable": False},
        "health": {"healthProbeBindAddress": _health(operator), **probes},
        "metrics": {"bindAddress": "0", "secureServing": False},
        "webhook": {"host": "127.0.0.1", "port": operator.webhook_port},
        "clientConnection": {"qps": 50, "burst": 100},
    }
    return [f"--kubeconfig={KUBECONFIG}", _file(operator, configuration)]


def _training_operator(operator: Component) -> list[str]:
    addresses = ["--metrics-bind-address=0", f"--health-probe-bind-address={_health(operator)}"]
    port = f"--webhook-server-port={operator.webhook_port}"
    return [f"--kubeconfig={KUBECONFIG}", "--enable-scheme=pytorchjob", *addresses, port]


def _kuberay(operator: Component) -> list[str]:
    """By way of the API server's proxy it needs no cluster DNS to reach a Ray dashboard."""
    addresses = ["--metrics-addr=127.0.0.1:8184", f"--health-probe-bind-address={_health(operator)}"]
    return [f"--kubeconfig={KUBECONFIG}", "--use-kubernetes-proxy=true", "--enable-leader-election=false", *addresses]


def _kueue(operator: Component) -> list[str]:
    configuration = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "namespace": operator.namespace,
        "internalCertManagement": {"enable": False},
        "health": {"healthProbeBindAddress": _health(operator)},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": operator.webhook_port, "certDir": SERVING},
        "clientConnection": {"qps": 50, "burst": 100},
        "integrations": {"frameworks": FRAMEWORKS},
    }
    gates = "--feature-gates=VisibilityOnDemand=false"
    return [f"--kubeconfig={KUBECONFIG}", gates, _file(operator, configuration)]


ARGUMENTS: dict[str, Callable[[Component], list[str]]] = {
    JOBSET.name: _jobset,
    MPI_OPERATOR.name: _mpi_operator,
    "trainer": _trainer,
    TRAINING_OPERATOR.name: _training_operator,
    KUBERAY.name: _kuberay,
    KUEUE.name: _kueue,
}
