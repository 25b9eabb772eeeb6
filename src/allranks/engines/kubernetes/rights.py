"""What a user must be allowed, as a value: the smallest Role that serves, and what each part of it is for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from allranks.engines.kubernetes.kinds import CONFIGMAP, EVENT, JOB, POD, SECRET, SERVICE, WORKLOAD, Kind
from allranks.engines.kubernetes.manifest import Explained

POD_LOG, POD_EXEC = Kind("v1", "Pod", "pods/log"), Kind("v1", "Pod", "pods/exec")
POD_STATUS = Kind("v1", "Pod", "pods/status")
ACCOUNT = Kind("v1", "ServiceAccount", "serviceaccounts")
ROLE = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
BINDING = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")


@dataclass(frozen=True)
class Right:
    """Verbs on one kind of object, and what they are for. Without an ``optional`` one all but that still works."""

    kind: Kind
    verbs: tuple[str, ...]
    why: str
    optional: bool = False
    names: tuple[str, ...] = ()
    """The only objects that it is for; all of the kind where there are none."""

    def rule(self) -> dict[str, Any]:
        """The rule of a Role, which says what it is for where it is printed."""
        rule = {"apiGroups": [self.kind.group], "resources": [self.kind.plural]}
        rule.update({"resourceNames": list(self.names)} if self.names else {}, verbs=list(self.verbs))
        return Explained(rule, verbs=f"{self.why}{' (optional)' if self.optional else ''}")


def rights(kinds: Iterable[Kind], *, queue: bool = False) -> list[Right]:
    """All that the verbs need, for engines that make objects of these kinds."""
    own = [Right(kind, ("get", "list", "create", "delete"), "run, status, list, cancel") for kind in kinds]
    return [
        *own,
        Right(CONFIGMAP, ("get", "create", "patch", "delete"), "run: the agent and its plan"),
        Right(SECRET, ("create", "patch", "delete"), "run: what the agents know each other by"),
        Right(POD, ("get", "list"), "status: which node is where, and why one is not"),
        Right(POD_LOG, ("get",), "run, logs"),
        Right(POD_EXEC, ("create", "get"), "status: what the coordinator knows; exec, shell, cancel with grace", True),
        Right(EVENT, ("list",), "status: quota, missing volumes and what else only events tell", True),
        *([Right(WORKLOAD, ("list",), "status: the place in Kueue's queue", True)] if queue else []),
    ]


def for_beside(kinds: Iterable[Kind]) -> list[Right]:
    """For what an engine makes beside its own object."""
    return [Right(kind, ("create", "patch", "delete"), "run: what the engine's object needs") for kind in kinds]


def for_services() -> list[Right]:
    """What comes on top for ``allranks serve``."""
    return [Right(SERVICE, ("create", "get", "patch", "delete"), "serve: where clients reach a service", True)]


def for_plain_jobs() -> list[Right]:
    """What comes on top where JobSet is not installed: its gangs are Jobs with a Service of their own."""
    return [*rights([JOB])[:1], Right(SERVICE, ("create", "patch", "delete"), "run: names for the pods of a plain Job")]


def force_delete(*ledger: str) -> list[Right]:
    """Of a gang that may give up its own pods on a lost node, and remembers over the loss of all of them.

    ``ledger`` is the name of the ConfigMap that it remembers in; without one it may do so in any.
    """
    why = "failure.force_delete: free what a lost node holds"
    return [
        Right(POD, ("list", "delete"), why, True),
        Right(POD_STATUS, ("patch",), f"{why}, for a Job's pods", True),
        Right(CONFIGMAP, ("get", "patch"), "failure.force_delete: budget and causes, when all pods go", True, ledger),
    ]


def for_force_delete() -> list[Right]:
    """Of whoever starts such a gang: nobody can give a right that he does not have."""
    why = "run: failure.force_delete's account"
    own = [Right(kind, ("create", "patch", "delete"), why, True) for kind in (ACCOUNT, ROLE, BINDING)]
    return [*own, *force_delete()]


def role(name: str, namespace: str, wanted: Iterable[Right]) -> dict[str, Any]:
    """A Role with these rights."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": name, "namespace": namespace},
        "rules": [right.rule() for right in wanted],
    }  # fmt: skip
