"""The engine trainjob: gangs as TrainJobs of Kubeflow Trainer, with a runtime of their own or one that is there."""

from __future__ import annotations

from allranks.engines.kubernetes.control import KubernetesEngine, Resource

ENGINE = KubernetesEngine(
    name="trainjob",
    summary="TrainJob of Kubeflow Trainer",
    resource=Resource("trainer.kubeflow.org", "v1alpha1", "TrainJob", "trainjobs"),
)
