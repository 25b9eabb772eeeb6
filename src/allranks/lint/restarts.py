"""Restarts that do not bring the gang back."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.rule import ERROR, JOBSET, PODS, PYTORCH, RUNTIME, WARNING, Found, Rule, Subject
from allranks.manifest.field import Field

LOST_NODE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
SLOW = 60


def _jobset(subject: Subject) -> Field:
    return subject.spec if subject.kind == "JobSet" else subject.spec.at("template", "spec")


def no_failure_policy(subject: Subject) -> Iterator[Found]:
    """A set that fails with its first Job."""
    spec = _jobset(subject)
    if not spec["failurePolicy"] and spec["replicatedJobs"]:
        yield Found(spec["failurePolicy"], "no failurePolicy", "write failurePolicy: {maxRestarts: 3}")


def backoff_before_restart(subject: Subject) -> Iterator[Found]:
    """Pods that are tried again, each alone, before the set restarts."""
    if not _jobset(subject)["failurePolicy"]:
        return
    for role in subject.roles:
        limit = role.spec.at("template", "spec", "backoffLimit")
        if limit.number != 0:
            said = f"backoffLimit: {limit.text}" if limit else "no backoffLimit, which means 6"
            yield Found(
                limit, f"{role.name}: {said}, under a failurePolicy", "write backoffLimit: 0 beside its template"
            )


def restart_in_place(subject: Subject) -> Iterator[Found]:
    """Containers that restart alone, before the set does."""
    if not _jobset(subject)["failurePolicy"]:
        return
    for role in subject.roles:
        policy = role.pod["restartPolicy"]
        if policy.text != "Never":
            said = f"restartPolicy: {policy.text}" if policy else "no restartPolicy, which means OnFailure"
            yield Found(
                policy, f"{role.name}: {said}, under a failurePolicy", "write restartPolicy: Never in the pod's spec"
            )


def one_pod_restarts(subject: Subject) -> Iterator[Found]:
    """Each pod of a PyTorchJob restarts alone."""
    if subject.spec["elasticPolicy"] or sum(role.count for role in subject.roles) < 2:
        return
    for role in subject.roles:
        policy = role.spec["restartPolicy"]
        if policy.text in ("", "OnFailure", "Always"):
            said = f"restartPolicy: {policy.text}" if policy else "no restartPolicy, which means OnFailure"
            fix = "write restartPolicy: Never and start the job anew, or let allranks restart the gang"
            yield Found(policy, f"{role.name}: {said}", fix)


def five_minutes(subject: Subject) -> Iterator[Found]:
    """Pods that Kubernetes leaves on a lost node for five minutes."""
    for role in subject.nodes:
        held = {one["key"].text: one for one in role.pod["tolerations"].items}
        slow = [
            key for key in LOST_NODE if key not in held or (held[key]["tolerationSeconds"].number or SLOW + 1) > SLOW
        ]
        if slow and "" not in held:
            fix = "tolerate not-ready and unreachable with effect: NoExecute and tolerationSeconds: 15"
            at = held.get(slow[0], role.pod["tolerations"])
            yield Found(at, f"{role.name}: no short toleration of {slow[0].partition('/')[2]}", fix)


def not_indexed(subject: Subject) -> Iterator[Found]:
    """Several pods of a Job that cannot tell which they are."""
    spec = subject.spec
    if subject.kind == "Job" and (spec["parallelism"].number or 1) > 1 and spec["completionMode"].text != "Indexed":
        yield Found(
            spec["completionMode"], f"{spec['parallelism'].text} pods, not Indexed", "write completionMode: Indexed"
        )


RULES = (
    Rule("no-failure-policy", WARNING, (*JOBSET, *RUNTIME), no_failure_policy,
        "The first Job that fails ends everything; nothing is restarted."),
    Rule("backoff-before-restart", WARNING, (*JOBSET, *RUNTIME), backoff_before_restart,
        "A failed pod is first tried again alone, up to 6 times, into a gang that has lost its rendezvous: "
        "minutes, then the restart."),
    Rule("restart-in-place", WARNING, (*JOBSET, *RUNTIME), restart_in_place,
        "The container restarts alone, into a gang that has lost its rendezvous, before the set does."),
    Rule("one-pod-restarts", WARNING, PYTORCH, one_pod_restarts,
        "The operator restarts one pod, never the gang: the others hang in a collective with the old one."),
    Rule("five-minute-tolerations", WARNING, PODS, five_minutes,
        "Kubernetes waits 300 s before it gives up pods on a lost node; the whole gang waits as long."),
    Rule("job-not-indexed", ERROR, ("Job",), not_indexed,
        "No pod knows its number, so none knows its ranks."),
)  # fmt: skip
