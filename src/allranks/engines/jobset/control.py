"""The engine jobset: gangs as JobSets, or as plain Jobs where JobSet is not installed."""

from __future__ import annotations

from allranks.engines.kubernetes.control import KubernetesEngine
from allranks.engines.kubernetes.kinds import JOB, JOBSET

ENGINE = KubernetesEngine(
    name="jobset",
    summary="JobSet on any Kubernetes, or a plain Job where there is none",
    kind=JOBSET,
    fallback=JOB,
)
