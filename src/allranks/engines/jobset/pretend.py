"""What the pods of a JobSet with one Indexed Job ``w`` see: an index, and names under a headless service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from allranks.engines.kubernetes.pretend import NATIVE_AND_TORCH, pod

if TYPE_CHECKING:
    from allranks.node.pod import Pod
    from allranks.spec.job import Job

LAUNCHERS = NATIVE_AND_TORCH


def pods(job: Job, addresses: Sequence[str]) -> list[Pod]:
    """One pod for each address, the first being node 0's."""
    return [
        pod(job, address, f"{job.name}-w-0-{node}", job.name, {"JOB_COMPLETION_INDEX": str(node)})
        for node, address in enumerate(addresses)
    ]
