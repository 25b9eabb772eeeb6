"""What the engine jobset makes of a job: a JobSet with one Indexed Job, or that Job alone where there is no JobSet.

Nothing of it restarts a single pod: the Job controller would wait 10 s, then 20, 40 and so on before each. A rank's
death never gets here; when a pod is lost, the whole set is made again, and exit code 42, with which an agent says that
the run is given up, ends it. Seen on JobSet 0.11 and Kubernetes 1.34.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from allranks.engines.kubernetes import free, pod, render
from allranks.engines.kubernetes.manifest import Explained, without_nothing
from allranks.node.ledger import MADE_ANEW
from allranks.node.verdict import EXIT_GIVEN_UP

if TYPE_CHECKING:
    from allranks.engines.engine import Plan
    from allranks.engines.kubernetes.admission import Admission
    from allranks.engines.kubernetes.cluster import Cluster
    from allranks.spec.job import Job

ENGINE = "jobset"
REPLICATED_JOB = "w"
RESTART_ATTEMPT = "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"

WHY_NOT = {
    "failure.clean": "neither JobSet nor Job deletes pods that have ended, nor leaves any that run; failure.ttl does",
}


def plan(job: Job, cluster: Cluster) -> Plan:
    """Render the job. Raises SpecError for what cannot be."""
    namespace = render.namespace_of(job, cluster)
    admission = render.admitted(job, ENGINE, cluster)
    make = _job_set if cluster.jobset else _plain_job
    documents = [
        *render.beside(job, ENGINE, namespace, _names(job, cluster.jobset), admission.group),
        *make(job, admission, namespace),
    ]
    return render.plan(job, ENGINE, documents, why_not=WHY_NOT, notes=[*admission.notes, *_notes(job, cluster)])


def _names(job: Job, jobset: bool) -> list[str]:
    stem = f"{job.name}-{REPLICATED_JOB}-0" if jobset else job.name
    return [f"{stem}-{node}.{job.name}" for node in range(job.nodes)]


def _job_set(job: Job, admission: Admission, namespace: str) -> Iterator[dict[str, Any]]:
    template = pod.template(job, ENGINE, admission, restart="Never", env=[restart_variable()])
    spec = _held(job, admission, set_spec(job, template, {}, REPLICATED_JOB))
    yield render.main_object(job, ENGINE, admission, namespace, "jobset.x-k8s.io/v1alpha2", "JobSet", spec)


def _held(job: Job, admission: Admission, spec: Mapping[str, Any]) -> Explained:
    """The spec with what says when it may begin and how long it is kept."""
    return without_nothing(
        {"suspend": admission.suspend or None, "ttlSecondsAfterFinished": render.ttl(job), **spec},
        suspend=render.HELD_BACK,
        ttlSecondsAfterFinished="failure.ttl",
    )


def restart_variable() -> dict[str, Any]:
    """The container's variable that says how often JobSet has made the set anew."""
    return {"name": MADE_ANEW, "valueFrom": {"fieldRef": {"fieldPath": RESTART_ATTEMPT}}}


def set_spec(job: Job, template: dict[str, Any], labels: dict[str, str], name: str) -> dict[str, Any]:
    """The spec of a JobSet of one Indexed Job with these labels and this name, as a TrainingRuntime has it too."""
    rules = [{"name": "spent", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}]
    return {
        # The next two are what JobSet's own webhook puts in; its controller crashes without the second.
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All"},
        "failurePolicy": Explained(
            {"maxRestarts": job.failure.restarts, "rules": rules},
            maxRestarts="failure.restarts: whole sets made again, each for a pod that was lost",
            rules="when the agents have given up, nobody tries again",
        ),
        "replicatedJobs": [
            {
                "name": name,
                "replicas": 1,
                "template": {**({"metadata": {"labels": labels}} if labels else {}), "spec": _job_spec(job, template)},
            }
        ],
    }


def _plain_job(job: Job, admission: Admission, namespace: str) -> Iterator[dict[str, Any]]:
    """Pods are replaced one by one, as often as a run may be restarted; each replaced one rejoins."""
    template = pod.template(job, ENGINE, admission, restart="Never", more={"subdomain": job.name})
    spec = _held(job, admission, _job_spec(job, template))
    spec = Explained(
        {**spec, "backoffLimit": job.failure.restarts},
        **spec.why,
        backoffLimit="failure.restarts: pods that were lost; the ranks' own restarts are the agents'",
        podFailurePolicy=_SPENT,
    )
    yield render.headless(job, ENGINE, namespace)
    yield render.main_object(job, ENGINE, admission, namespace, "batch/v1", "Job", spec)


_SPENT = f"an agent exits with {EXIT_GIVEN_UP} when the run is given up"


def _job_spec(job: Job, template: dict[str, Any]) -> Explained:
    """One pod a node, numbered from 0."""
    rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [EXIT_GIVEN_UP]}}
    return Explained(
        {
            "completionMode": "Indexed",
            "completions": job.nodes,
            "parallelism": job.nodes,
            "backoffLimit": 0,
            "podFailurePolicy": {"rules": [rule]},
            "template": template,
        },
        completions="nodes",
        backoffLimit="one pod lost is the set's restart: the Job's own would wait 10 s, then 20, 40, ...",
        podFailurePolicy=_SPENT,
    )


def _notes(job: Job, cluster: Cluster) -> Iterator[str]:
    if cluster.jobset:
        yield from free.forgotten(job)
    else:
        yield (
            "JobSet is not installed there: a plain Job replaces lost pods one by one, "
            "and waits 10 s, then 20, 40, ... before each"
        )
