"""The engine jobset: gangs as JobSets, or as plain Jobs where JobSet is not installed."""

from __future__ import annotations

from allranks.engines.kubernetes.control import KubernetesEngine, Resource

ENGINE = KubernetesEngine(
    name="jobset",
    summary="JobSet on any Kubernetes, or a plain Job where there is none",
    resource=Resource("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"),
    fallback=Resource("batch", "v1", "Job", "jobs"),
)
