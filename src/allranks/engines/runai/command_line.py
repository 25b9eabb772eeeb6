"""The ``runai`` command line of a job, in its two versions: the same things by other names."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from allranks.engines.kubernetes import delivery
from allranks.engines.kubernetes.pod import uses_rdma

if TYPE_CHECKING:
    from allranks.spec.job import Job, Volume

STATE = "/tmp/allranks"
"""Not a volume of its own: not every version of runai can make one."""
SECRET_PATH = "/allranks-secret"
NVIDIA = "nvidia.com/gpu"
BOOTSTRAP = """\
import base64, os
d, e = "%(state)s/mounted", os.environ
os.makedirs(d, 0o700, True)
def put(name, data):
    with open(os.open(d + "/" + name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as f:
        f.write(data)
put("agent.pyz", base64.b64decode("".join(e.pop("ALLRANKS_AGENT_%%d" %% n) for n in range(%(pieces)d))))
put("plan.json", e.pop("ALLRANKS_PLAN").encode())
put("secret", e.pop("ALLRANKS_SECRET").encode())
os.execvp("python3", ["python3", d + "/agent.pyz", "init", d + "/plan.json"])
"""
"""Makes files of the variables that version 1 fills from the run's Secret."""


def argv(job: Job, version: int, pieces: int) -> list[str]:
    """The words of the command; version 1 or 2 of runai. The agent comes in so many ``pieces`` to version 1."""
    words = _verbs(job, version)
    words += _of_both(job, version)
    words += _of_1(job, pieces) if version == 1 else _of_2(job)
    command = ["python3", "-c", BOOTSTRAP % {"state": STATE, "pieces": pieces}]
    return [*words, "--command", "--", *(command if version == 1 else delivery.COMMAND)]


def noted(job: Job, version: int) -> dict[str, str]:
    """Annotations of the pods, by which the run is found and asked."""
    agent = f"{STATE}/mounted/{delivery.AGENT}" if version == 1 else f"{delivery.CODE}/{delivery.AGENT}"
    return {**delivery.noted(job), delivery.FILES: f"{agent}:{STATE}/state/plan.json"}


def line(words: Sequence[str]) -> str:
    """The same for a POSIX shell, an option a line."""
    quoted = [shlex.quote(word) for word in words]
    lines, start = [], 0
    for number, word in enumerate(words):
        if number and word.startswith("-") and words[number - 1] != "--" and "--" not in words[:number]:
            lines.append(" ".join(quoted[start:number]))
            start = number
    return " \\\n  ".join([*lines, " ".join(quoted[start:])]) + "\n"


def _verbs(job: Job, version: int) -> list[str]:
    project = job.engines.runai.project
    named = ["--project", project] if project else []
    if version == 1:
        interactive = ["--interactive"] if job.engines.runai.interactive else []
        return ["runai", "submit-dist", "pytorch", "--name", job.name, *named, *interactive]
    return ["runai", "training", "pytorch", "submit", job.name, *named]


def _of_both(job: Job, version: int) -> list[str]:
    """What both versions call the same. One worker less than there are nodes: the master is node 0."""
    options = [("--image", str(job.image)), ("--workers", str(job.nodes - 1))]
    wanted = job.resources
    if wanted.gpus and wanted.gpu_resource == NVIDIA:
        options.append(("-g", str(wanted.gpus)))
    elif wanted.gpus:
        options.append(("--extended-resource", f"{wanted.gpu_resource}={wanted.gpus}"))
    options += [("--extended-resource", f"{name}={amount}") for name, amount in wanted.extra.items()]
    options += [("--annotation", f"{name}={value}") for name, value in job.network.annotations.items()]
    options += [("--annotation", f"{name}={value}") for name, value in noted(job, version).items()]
    options += [("--label", f"{name}={value}") for name, value in delivery.labels(job, "runai").items()]
    options += [("-e", f"TMPDIR={STATE}/tmp")]
    if (job.workdir or "").startswith("/"):
        options.append(("--working-dir", str(job.workdir)))
    options += [("--clean-pod-policy", job.failure.clean.capitalize())]
    options += [("--backoff-limit", str(job.failure.restarts))]
    shm = ["--large-shm"] if wanted.shm else []
    return [word for option in options for word in option] + shm


def _of_1(job: Job, pieces: int) -> list[str]:
    """What only version 1 says so: CPU, memory, volumes, and variables from a Secret."""
    wanted, secret = job.resources, delivery.name_of(job.name)
    options = [("--cpu", str(wanted.cpu))] if wanted.cpu else []
    options += [("--memory", str(wanted.memory)), ("--memory-limit", str(wanted.memory))] if wanted.memory else []
    options += [_volume_of_1(volume) for volume in job.volumes]
    options += [("--add-capability", "IPC_LOCK")] if uses_rdma(job) else []
    keys = {f"ALLRANKS_AGENT_{number}": f"agent-{number}" for number in range(pieces)}
    keys |= {"ALLRANKS_PLAN": delivery.PLAN, "ALLRANKS_SECRET": delivery.SECRET}
    options += [("-e", f"{name}=SECRET:{secret},{key}") for name, key in keys.items()]
    return [word for option in options for word in option]


def _of_2(job: Job) -> list[str]:
    """What only version 2 says so."""
    wanted, name = job.resources, delivery.name_of(job.name)
    options = [("--cpu-core-request", str(float(wanted.cpu)))] if wanted.cpu else []
    if wanted.memory:
        memory = str(wanted.memory)
        options += [("--cpu-memory-request", memory), ("--cpu-memory-limit", memory)]
    options += [_volume_of_2(volume) for volume in job.volumes]
    options += [("--capability", "IPC_LOCK")] if uses_rdma(job) else []
    options += [("--priority", job.schedule.priority)] if job.schedule.priority else []
    if job.failure.ttl:
        options.append(("--auto-deletion-time-after-completion", f"{int(job.failure.ttl.seconds)}s"))
    options.append(("--configmap-map-volume", f"name={name},path={delivery.CODE}"))
    options.append(("--secret-volume", f"path={SECRET_PATH},name={name}"))
    return [word for option in options for word in option]


def _volume_of_1(volume: Volume) -> tuple[str, str]:
    if volume.claim:
        return "--pvc-exists", f"claimname={volume.claim},path={volume.path}"
    return "--volume", f"{volume.host}:{volume.path}" + (":ro" if volume.read_only else "")


def _volume_of_2(volume: Volume) -> tuple[str, str]:
    if volume.claim:
        return "--existing-pvc", f"claimname={volume.claim},path={volume.path}"
    return "--host-path", f"path={volume.host},mount={volume.path}" + ("" if volume.read_only else ",readwrite")


def with_commas(job: Job) -> Iterator[str]:
    """The fields that hold a comma, where the options above would be cut."""
    for number, volume in enumerate(job.volumes):
        for name in ("claim", "host", "path"):
            if "," in (getattr(volume, name) or ""):
                yield f"volumes.{number}.{name}"
