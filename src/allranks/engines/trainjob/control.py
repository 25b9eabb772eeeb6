"""The engine trainjob: gangs as TrainJobs of Kubeflow Trainer, with a runtime of their own or one that is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from allranks.engines.kubernetes.control import KubernetesEngine
from allranks.engines.kubernetes.kinds import TRAINING_RUNTIME, TRAINJOB
from allranks.engines.kubernetes.pods import INDEX, Object, of_job

if TYPE_CHECKING:
    from allranks.engines.engine import Plan
    from allranks.engines.kubernetes.client import Client

STEP = "jobset.sigs.k8s.io/replicatedjob-name"
NODE = "node"


def node_of(pod: Object) -> int | None:
    """Pods of the replicated Job ``node``; a runtime may have others, for a launcher or to fetch data."""
    step = (pod["metadata"].get("labels") or {}).get(STEP)
    return of_job(pod) if step == NODE else None


class TrainJobEngine(KubernetesEngine):
    """Looks at the runtime that a job names before anything is made."""

    def check(self, plan: Plan) -> Sequence[str]:
        from allranks.engines.trainjob import runtime

        return [*runtime.judge(self.connect(), plan), *super().check(plan)]

    def create(self, client: Client, plan: Plan) -> Object:
        from allranks.engines.trainjob import runtime

        runtime.judge(client, plan)
        return super().create(client, plan)


ENGINE = TrainJobEngine(
    name="trainjob",
    summary="TrainJob of Kubeflow Trainer",
    kind=TRAINJOB,
    beside=(TRAINING_RUNTIME,),
    node_of=node_of,
    head=((STEP, NODE), (INDEX, "0")),
)
