"""The engine runai: gangs as distributed workloads of Run:ai, whose pods are a PyTorchJob's."""

from __future__ import annotations

from allranks.engines.kubernetes.control import KubernetesEngine
from allranks.engines.kubernetes.kinds import PYTORCHJOB
from allranks.engines.pytorchjob.control import node_of

ENGINE = KubernetesEngine(name="runai", summary="Run:ai, by its command line", kind=PYTORCHJOB, node_of=node_of)
