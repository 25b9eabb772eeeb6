"""The job as Run:ai's REST API takes it: the body of POST /api/v1/workloads/distributed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from allranks.engines.kubernetes import delivery
from allranks.engines.kubernetes.manifest import without_nothing
from allranks.engines.runai import command_line

if TYPE_CHECKING:
    from allranks.spec.job import Job


def body(job: Job) -> dict[str, Any]:
    """Without projectId and clusterId, which are numbers of the installation's own."""
    command, *args = delivery.COMMAND
    spec = without_nothing({
        "command": command,
        "args": shlex.join(args),
        "image": job.image,
        "workingDir": job.workdir if (job.workdir or "").startswith("/") else None,
        "environmentVariables": [{"name": "TMPDIR", "value": f"{command_line.STATE}/tmp"}],
        "annotations": [{"name": name, "value": value} for name, value in _annotations(job).items()],
        "labels": [{"name": name, "value": value} for name, value in delivery.labels(job, "runai").items()],
        "distributedFramework": "PyTorch",
        "numWorkers": job.nodes - 1,
        "compute": _compute(job),
        "storage": _storage(job),
        "backoffLimit": job.failure.restarts,
        "cleanPodPolicy": job.failure.clean.capitalize(),
    })  # fmt: skip
    return {"name": job.name, "masterSpecSameAsWorker": True, "spec": spec}


def _annotations(job: Job) -> dict[str, str]:
    return {**job.network.annotations, **command_line.noted(job, 2)}


def _compute(job: Job) -> dict[str, Any]:
    wanted = job.resources
    nvidia = wanted.gpu_resource == command_line.NVIDIA
    counted = {name: str(amount) for name, amount in wanted.extra.items()}
    if wanted.gpus and not nvidia:
        counted = {wanted.gpu_resource: str(wanted.gpus), **counted}
    return without_nothing({
        "gpuDevicesRequest": wanted.gpus if wanted.gpus and nvidia else None,
        "cpuCoreRequest": float(wanted.cpu) if wanted.cpu else None,
        "cpuMemoryRequest": str(wanted.memory) if wanted.memory else None,
        "cpuMemoryLimit": str(wanted.memory) if wanted.memory else None,
        "largeShmRequest": True if wanted.shm else None,
        "extendedResources": [{"resource": name, "quantity": amount} for name, amount in counted.items()],
    })  # fmt: skip


def _storage(job: Job) -> dict[str, Any]:
    name = delivery.name_of(job.name)
    claims = [
        {"claimName": volume.claim, "existingPvc": True, "path": volume.path, "readOnly": volume.read_only}
        for volume in job.volumes
        if volume.claim
    ]
    hosts = [
        {"path": volume.host, "mountPath": volume.path, "readOnly": volume.read_only}
        for volume in job.volumes
        if volume.host
    ]
    return without_nothing({
        "pvc": claims,
        "hostPath": hosts,
        "configMapVolume": [{"configMap": name, "mountPath": delivery.CODE}],
        "secretVolume": [{"secret": name, "mountPath": command_line.SECRET_PATH}],
    })  # fmt: skip
