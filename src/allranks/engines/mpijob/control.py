"""The engine mpijob: gangs as MPIJobs of the Kubeflow MPI operator."""

from __future__ import annotations

from allranks.engines.kubernetes.control import KubernetesEngine, Resource

ENGINE = KubernetesEngine(
    name="mpijob",
    summary="MPIJob of the Kubeflow MPI operator",
    resource=Resource("kubeflow.org", "v2beta1", "MPIJob", "mpijobs"),
)
