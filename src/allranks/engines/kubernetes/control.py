"""What the engines on Kubernetes share: an engine is its name, the object it makes, and its ``plan`` module.

Here are ``available`` and ``plan``. What asks the API server (``submit``, ``status``, ``list``, ``cancel`` and the
abilities ``CanLog``, ``CanExec``, ``CanShell``) comes on top of it, and so does ``cluster``, which until then says what
is assumed where nobody can be asked. What a plan leaves to ``submit``: the value of its Secret (``delivery.SECRET``,
64 hex digits), and owner references from the plan's other documents to ``render.main_document(plan)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from allranks.engines.kubernetes.cluster import Cluster

if TYPE_CHECKING:
    from pathlib import Path

    from allranks.engines.engine import Plan
    from allranks.spec.job import Job


@dataclass(frozen=True)
class Resource:
    """An object's kind as the API server knows it; ``plural`` is the last part of its address."""

    group: str
    version: str
    kind: str
    plural: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"


@dataclass(frozen=True)
class KubernetesEngine:
    """Runs gangs by way of one operator. ``fallback`` is what it makes where the operator is not installed."""

    name: str
    summary: str
    resource: Resource
    fallback: Resource | None = None

    def available(self) -> str:
        return "this version only plans for it: allranks plan --engine " + self.name

    def cluster(self) -> Cluster:
        """What there is, by the API server, or what is assumed where none can be asked."""
        return Cluster()

    def plan(self, job: Job, folder: Path) -> Plan:
        module = import_module(f"allranks.engines.{self.name}.plan")
        made: Plan = module.plan(job, self.cluster())
        return made
