"""What a gang needs that may ask its API server (``failure.force_delete``): an account, its Role, and a ledger.

It gives up its own pods on a lost node, and keeps its budget and causes where no pod's end takes them (its ledger).

A job that has a service account of its own (``pod.serviceAccountName``) keeps it, and whoever made that gives it the
Role; a note says which.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from allranks.engines.kubernetes import delivery
from allranks.engines.kubernetes.manifest import Explained
from allranks.engines.kubernetes.rights import force_delete, role
from allranks.node import keeper

if TYPE_CHECKING:
    from allranks.spec.job import Job

RBAC = "rbac.authorization.k8s.io"


def account(job: Job) -> str:
    """The service account that the pods are to have; empty for the namespace's, or the job's own."""
    return delivery.name_of(job.name) if job.failure.force_delete and not _own(job) else ""


def documents(job: Job, engine: str, namespace: str) -> list[dict[str, Any]]:
    """The ledger, the account, the Role and what binds them; nothing where the job has not asked for it."""
    if not job.failure.force_delete:
        return []
    meta = delivery.metadata(job, engine, namespace, keeper.name_of(job.name))
    ledger = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
    return [Explained(ledger, kind="where the gang keeps its budget and causes"), *_account(job, engine, namespace)]


def _account(job: Job, engine: str, namespace: str) -> list[dict[str, Any]]:
    name = account(job)
    if not name:
        return []
    meta = delivery.metadata(job, engine, namespace, name)
    why = "failure.force_delete: the pods may delete pods of this namespace; a Role knows no labels"
    rules = role(name, namespace, force_delete(keeper.name_of(job.name)))["rules"]
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        Explained({"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": dict(meta), "rules": rules}, rules=why),
        {
            "apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": dict(meta),
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name}, "subjects": [subject],
        },
    ]  # fmt: skip


def notes(job: Job) -> Iterator[str]:
    """What somebody else must see to."""
    if job.failure.force_delete and _own(job):
        rules = [right.rule() for right in force_delete(keeper.name_of(job.name))]
        yield f"failure.force_delete: {_own(job)} is the job's own service account, and needs a Role with {rules}"


def forgotten(job: Job) -> Iterator[str]:
    """Where all pods are made anew when one is lost: what becomes of the gang's memory."""
    if job.failure.restarts and not job.failure.force_delete:
        yield (
            "when a pod is lost all are made anew: the gang then forgets which it was, its causes, and what ranks used "
            "of failure.restarts before; failure.force_delete: true keeps that"
        )


def _own(job: Job) -> str:
    return str(job.pod.get("serviceAccountName") or "")
