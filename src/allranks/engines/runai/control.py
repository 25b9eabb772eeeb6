"""The engine runai: gangs as distributed workloads of Run:ai, whose pods are a PyTorchJob's."""

from __future__ import annotations

from allranks.engines.kubernetes.control import KubernetesEngine, Resource

ENGINE = KubernetesEngine(
    name="runai",
    summary="Run:ai, by its command line",
    resource=Resource("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs"),
)
