"""A spec in the making: what was carried, from where, and what was not, and why.

Nothing is dropped in silence: what no carrier took is listed at the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from allranks.errors import SpecError
from allranks.manifest.field import Field
from allranks.manifest.launch import ROLL_CALL
from allranks.spec.job import Job
from allranks.spec.load import dump, parse
from allranks.spec.wording import sentence

# What a server wrote, or what says only which kind of thing this is.
SILENT = frozenset(["apiVersion", "kind", "status"])
SERVERS = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink")
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
SHM_NEEDS_A_SIZE = "a spec says how large /dev/shm is: resources.shm, such as 16Gi"
WHOLE_GANG = "a gang restarts as a whole: see failure.restarts"
WHY = {
    "restartPolicy": WHOLE_GANG,
    "completionMode": "every node of a gang has a number",
    "completions": "a gang is done when all its ranks are",
    "successPolicy": "a gang is done when all its ranks are",
    "failurePolicy": WHOLE_GANG,
    "podFailurePolicy": WHOLE_GANG,
    "sshAuthMountPath": "allranks makes and mounts the keys that mpirun needs",
    "mpiImplementation": "allranks starts ranks with Open MPI",
    "launcherCreationPolicy": ROLL_CALL,
    "dependsOn": ROLL_CALL,
    "startupPolicy": ROLL_CALL,
    "ports": "ranks need no declared ports",
    "readinessProbe": "the roll call tells who is ready",
    "elasticPolicy": "a gang has a fixed number of nodes",
    "schedulingPolicy": "allranks asks the gang scheduler for all nodes: see schedule",
    "suspend": "the queue suspends and resumes a gang: see schedule.queue",
    "managedBy": "the engine sets it",
    "network": "the engine sees to names",
    "podGroupPolicy": "see schedule.gang",
    "labels": "the engine sets its own labels",
}

AMOUNT = re.compile(r"\.(?:(?:limits|requests)\.[^\[\]]+|sizeLimit)$")
WHOLE_NUMBER = "a whole number, 0 or more"
WANTED = dict.fromkeys(
    ["replicas", "nprocPerNode", "slotsPerWorker", "parallelism", "completions", "numNodes", "numProcPerNode",
     "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "maxRestarts", "tolerationSeconds",
     "terminationGracePeriodSeconds"],
    WHOLE_NUMBER,
) | dict.fromkeys(["readOnly", "runLauncherAsWorker"], "true or false") | {
    "cleanPodPolicy": "None, Running or All",
}  # fmt: skip
WANTED |= dict.fromkeys(
    ["name", "kind", "namespace", "image", "workingDir", "priorityClassName", "schedulerName", "key", "operator",
     "value", "effect", "claimName", "path", "mountPath"],
    "text",
) | dict.fromkeys(
    ["command", "args", "env", "envFrom", "volumeMounts", "volumes", "tolerations", "containers", "replicatedJobs"],
    "a list",
)  # fmt: skip
"""What each of these must be; found otherwise, it is not carried."""


@dataclass(frozen=True)
class Lost:
    """Something that the spec does not hold."""

    where: str
    what: str
    why: str

    def __str__(self) -> str:
        """One line, with its place in front."""
        return f"{self.where}: {self.what}: {self.why}"


@dataclass
class Draft:
    """``fields`` become a Job; ``origins`` say what each came from, by its dotted path."""

    source: str
    engine: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    lost: list[Lost] = field(default_factory=list)
    origins: dict[tuple[str, ...], Field] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def take(self, *fields: Field) -> None:
        """These and all below them are accounted for."""
        self.taken.update(one.path for one in fields)

    def take_fit(self, *fields: Field) -> None:
        """The same, of values that were carried if they are what they must be; the others are lost."""
        for one in fields:
            if unfit := _unfit(one):
                self.lose(one, unfit)
            else:
                self.take(one)

    def fits(self, whole: Field) -> bool:
        """Whether nothing in this is of a wrong type; what is, is lost, and the whole with it."""
        unfit = [(one, why) for one in whole.walk() if (why := _unfit(one))]
        for one, why in unfit:
            self.lose(one, why)
        return not unfit

    def set(self, path: str, value: Any, origin: Field | None = None) -> None:
        """Carry a value; ``path`` is dotted, such as ``resources.gpus``."""
        self.put(tuple(path.split(".")), value, origin)

    def put(self, path: tuple[str, ...], value: Any, origin: Field | None = None) -> None:
        """Carry a value to this path, of names that may hold dots."""
        part = self.fields
        for step in path[:-1]:
            part = part.setdefault(step, {})
        part[path[-1]] = value
        if origin is not None:
            self.origins[path] = origin
            self.take(origin)

    def lose(self, origin: Field, why: str, what: str = "") -> None:
        """Say that this is not carried."""
        self.take(origin)
        place = f"{self.source}:{origin.position.line}:{origin.position.column}"
        self.lost.append(Lost(place, what or _shown(origin), why))

    def rest(self, root: Field) -> None:
        """List all that nobody took."""
        for left in self._left(root):
            self.lose(left, self._why(left))

    def _left(self, at: Field) -> Iterator[Field]:
        if at.path in self.taken or not at or at.path in SILENT or _is_servers(at.path):
            return
        below = [*at.fields.values(), *at.items]
        parts = list(at.walk())[1:]
        seen_into = any(one.path in self.taken or _unfit(one) for one in parts) or at.path in ("", "spec", "metadata")
        if below and seen_into and not _unfit(at):
            for one in below:
                yield from self._left(one)
        else:
            yield at

    def _why(self, left: Field) -> str:
        name = left.path.rpartition(".")[2]
        if unfit := _unfit(left):
            return unfit
        if name in WHY:
            return WHY[name]
        way_out = f"; engines.{self.engine}.manifest is merged into what that engine renders" if self.engine else ""
        return f"a spec has no such field{way_out}"

    def job(self) -> Job:
        """Make the Job; fields that do not fit one are lost, and why. Raises SpecError where none can be made."""
        for _ in range(1000):
            try:
                job = Job.model_validate(self.fields)
            except ValidationError as error:
                self._drop(error)
                continue
            parse(dump(job), f"{self.source} as a spec")
            return job
        raise SpecError(f"{self.source}: too much of this does not fit a spec")

    def _drop(self, error: ValidationError) -> None:
        """Take out the first field that does not fit."""
        first = error.errors(include_url=False)[0]
        path = tuple(str(step) for step in first["loc"] if step != "[key]")
        while path and not _has(self.fields, path):
            path = path[:-1]
        if not path or first["type"] == "missing":
            raise SpecError(f"{self.source}: no spec can be made of this: {sentence(first)}")
        origin = next((self.origins[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.origins), None)
        _remove(self.fields, path)
        place = f"{self.source}:{origin.position.line}:{origin.position.column}" if origin else self.source
        self.lost.append(Lost(place, _shown(origin) if origin else ".".join(path), sentence(first)))


def _shown(origin: Field) -> str:
    text = origin.text
    name = origin.path or "the document"
    return f"{name}: {text if len(text) <= 60 else text[:57] + '...'}" if text and "\n" not in text else name


def _unfit(field: Field) -> str:
    """What is wrong with a value that is of another type than its field."""
    if AMOUNT.search(field.path) and field and field.quantity is None:
        return "allowed is an amount, such as 8 or 32Gi"
    wanted = WANTED.get(field.path.rpartition(".")[2], "")
    if not field or not wanted:
        return ""
    fits = {
        WHOLE_NUMBER: field.number is not None and field.number >= 0,
        "true or false": field.node is not None and isinstance(field.node.value, bool),
        "text": not field.is_list and not field.is_mapping,
        "a list": field.is_list,
    }.get(wanted, field.text in wanted.replace(",", "").split())
    return "" if fits else f"allowed is {wanted}"


def _is_servers(path: str) -> bool:
    return path.endswith(LAST_APPLIED) or (path.startswith("metadata.") and path.endswith(SERVERS))


def _has(fields: dict[str, Any], path: tuple[str, ...]) -> bool:
    for step in path:
        if not isinstance(fields, dict) or step not in fields:
            return False
        fields = fields[step]
    return True


def _remove(fields: dict[str, Any], path: tuple[str, ...]) -> None:
    for step in path[:-1]:
        fields = fields[step]
    del fields[path[-1]]
