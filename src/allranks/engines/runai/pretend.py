"""What the pods of a Run:ai distributed workload see: a PyTorchJob's variables, and Run:ai's own beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from allranks.engines.pytorchjob import pretend as pytorchjob

if TYPE_CHECKING:
    from allranks.node.pod import Pod
    from allranks.spec.job import Job

LAUNCHERS = pytorchjob.LAUNCHERS


def pods(job: Job, addresses: Sequence[str]) -> list[Pod]:
    """One pod for each address, the master being node 0's."""
    own = {
        "RUNAI_JOB_NAME": job.name,
        "RUNAI_PROJECT": job.engines.runai.project or "default",
        "RUNAI_NUM_OF_GPUS": str(job.resources.gpus),
    }
    return [replace(pod, env={**pod.env, **own}) for pod in pytorchjob.pods(job, addresses)]
