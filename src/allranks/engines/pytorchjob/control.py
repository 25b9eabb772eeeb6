"""The engine pytorchjob: gangs as PyTorchJobs of the Kubeflow training operator."""

from __future__ import annotations

from allranks.engines.kubernetes.control import KubernetesEngine, Resource

ENGINE = KubernetesEngine(
    name="pytorchjob",
    summary="PyTorchJob of the Kubeflow training operator",
    resource=Resource("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs"),
)
