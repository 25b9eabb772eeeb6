"""Whether a gang can run on the ClusterTrainingRuntime that ``engines.trainjob.runtime`` names.

Only the torch policy numbers the pods; the mpi policy starts a pod more, whose mpirun would know nothing of the agents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from allranks.engines.kubernetes.kinds import TRAINJOB
from allranks.engines.kubernetes.refusals import NoRight
from allranks.errors import EngineError

if TYPE_CHECKING:
    from allranks.engines.engine import Plan
    from allranks.engines.kubernetes.client import Client

KIND = "ClusterTrainingRuntime"
PATH = f"/apis/{TRAINJOB.api_version}/clustertrainingruntimes"
POLICIES = ("mpi", "torch", "jax", "xgboost", "flux")
OWN = "or leave engines.trainjob.runtime out, so that the run has a runtime of its own"


def judge(client: Client, plan: Plan) -> list[str]:
    """Raises EngineError for a runtime that no gang can run on; returns a note where it may not be looked at."""
    names = sorted({ref["name"] for ref in map(_reference, plan.documents) if ref.get("kind") == KIND})
    if not names:
        return []
    try:
        found = client.page(PATH).get("items") or []
    except NoRight:
        right = "that needs the right to list clustertrainingruntimes (trainer.kubeflow.org)"
        return [f"{KIND} {name} was not looked at: {right}; it must have the torch policy" for name in names]
    for name in names:
        if reason := why_not(name, found):
            raise EngineError(reason)
    return []


def why_not(name: str, found: Sequence[Mapping[str, Any]]) -> str:
    """Why the runtime of this name, among all that the cluster has, holds no gang; empty where it does."""
    fit = [str(one["metadata"]["name"]) for one in found if policy(one) == "torch"]
    instead = f"take one with the torch policy ({', '.join(fit) or 'the cluster has none'}), {OWN}"
    asked = next((one for one in found if one["metadata"]["name"] == name), None)
    if asked is None:
        there = ", ".join(sorted(str(one["metadata"]["name"]) for one in found)) or "none"
        return f"engines.trainjob.runtime: there is no {KIND} {name}; there are: {there}; {instead}"
    if policy(asked) != "torch":
        has = f"the {policy(asked)} policy" if policy(asked) else "no policy that numbers its pods"
        return f"engines.trainjob.runtime: {KIND} {name} has {has} (spec.mlPolicy), on which no gang runs; {instead}"
    return ""


def policy(runtime: Mapping[str, Any]) -> str:
    """The machine-learning policy that a runtime has, or an empty string."""
    has = runtime["spec"].get("mlPolicy") or {}
    return next((name for name in POLICIES if name in has), "")


def _reference(document: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (document.get("spec") or {}).get("runtimeRef") or {}
    return found
