"""Kueue: a job is created suspended, and waits until its queue has room for all of it."""

from __future__ import annotations

from tests.cluster.namespace import Namespace
from tests.cluster.smoke.conftest import Agrees, Smoke


def test_a_gang_is_admitted_as_a_whole_and_the_next_one_waits_for_its_quota(smoke: Smoke, agrees: Agrees) -> None:
    queue = smoke("kueue.yaml")
    smoke("mpijob-queued.yaml", name="first", cpu="200m")
    queue.wait("the first gang's three pods to run", lambda: running(queue, "first") == 3)
    smoke("mpijob-queued.yaml", name="second", cpu="200m")
    smoke("mpijob-queued.yaml", name="greedy", cpu="800m")
    assert "insufficient unused quota for cpu" in queue.wait("a reason", lambda: why_pending(queue, "second"))
    assert "insufficient quota for cpu" in queue.wait("a reason", lambda: why_pending(queue, "greedy"))
    assert queue.get("mpijob", "second")["spec"]["runPolicy"]["suspend"]
    agrees("kueue", "mpijob")
    queue.kubectl("delete", "mpijob", "first")
    queue.wait("the second gang's three pods to run", lambda: running(queue, "second") == 3)
    assert running(queue, "greedy") == 0


def running(queue: Namespace, job: str) -> int:
    pods = queue.list("pods", f"training.kubeflow.org/job-name={job}")
    return sum(pod["status"]["phase"] == "Running" for pod in pods)


def why_pending(queue: Namespace, job: str) -> str:
    """What Kueue says of the job in the condition of its Workload."""
    for workload in queue.list("workloads"):
        if any(owner["name"] == job for owner in workload["metadata"]["ownerReferences"]):
            for condition in workload.get("status", {}).get("conditions", []):
                if condition["type"] == "QuotaReserved" and condition["status"] == "False":
                    return str(condition["message"])
    return ""
