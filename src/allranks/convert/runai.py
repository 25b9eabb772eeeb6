"""A ``runai`` command line as a spec: ``runai submit-dist pytorch`` (version 1), ``runai training pytorch submit`` (2).

Workers are nodes beside the master, so nodes = workers + 1; with MPI, and without a master, they are all nodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from allranks.convert.command import Around, carry_command
from allranks.convert.draft import SHM_NEEDS_A_SIZE, Draft, Lost
from allranks.errors import SpecError
from allranks.spec.command import label
from allranks.spec.job import Job
from allranks.spec.units import Quantity

COMMAND = "the command"
# Options without a value; every other takes one.
FLAGS = frozenset([
    "--large-shm", "--host-ipc", "--host-network", "--interactive", "--preemptible", "--attach", "--tty", "-t",
    "--stdin", "--dry-run", "--command", "--no-master", "--master-no-pvcs", "--privileged",
    "--allow-privilege-escalation", "--create-home-dir", "--wait",
])  # fmt: skip
WHY = {
    "--backoff-limit": "", "--max-replicas": "a gang has a fixed number of nodes",
    "--min-replicas": "a gang has a fixed number of nodes", "--attach": "run follows by itself",
    "--master-args": "all nodes of a gang run the same", "--master-command": "all nodes of a gang run the same",
}  # fmt: skip
SHORT = {
    "-i": "--image",
    "-g": "--gpu",
    "-p": "--project",
    "-e": "--environment",
    "-v": "--volume",
    "-a": "--annotation",
}
SAME = {
    "--gpu-devices-request": "--gpu", "--cpu-core-request": "--cpu", "--cpu-memory-request": "--memory",
    "--environment-variable": "--environment", "--pvc-exists": "--existing-pvc", "--workdir": "--working-dir",
}  # fmt: skip


def is_runai(argv: Sequence[str]) -> bool:
    """Whether these words call runai."""
    return bool(argv) and argv[0].rpartition("/")[2] == "runai"


def from_runai(argv: Sequence[str]) -> tuple[Job, list[Lost]]:
    """Make a spec of a command line. Raises SpecError."""
    verbs, options, command = _split(argv[1:])
    framework = next((word for word in verbs if word in ("pytorch", "mpi", "tf", "tensorflow")), "")
    framework = next((value.lower() for name, value in options if name in ("--framework", "-f")), framework)
    if not set(verbs) & {"submit", "submit-dist"} or not framework:
        raise SpecError(
            f"the command: found 'runai {' '.join(verbs)}'; known are 'runai submit-dist pytorch', "
            "'runai training pytorch submit', and the same with mpi"
        )
    draft = Draft(COMMAND, "runai")
    name = verbs[-1] if verbs[-1] not in ("submit", framework) else "job"
    draft.set("name", label(next((value for option, value in options if option == "--name"), name)))
    for option, value in options:
        _option(draft, option, value)
    workers = _number(options, "--workers") or 0
    no_master = ("--no-master", "") in options
    nodes = workers if framework == "mpi" or no_master else workers + 1
    if not command:
        raise SpecError("the command: nothing after '--', so the image's own would run; add it and convert again")
    slots = _number(options, "--slots-per-worker")
    carry_command(draft, command, Around(max(nodes, 1), slots, is_launcher=framework == "mpi"), COMMAND)
    return draft.job(), draft.lost


def _split(argv: Sequence[str]) -> tuple[list[str], list[tuple[str, str]], tuple[str, ...]]:
    """Split into verbs, options with their values, and what follows ``--``."""
    cut = list(argv).index("--") if "--" in argv else len(argv)
    ours, command = list(argv[:cut]), tuple(argv[cut + 1 :])
    verbs: list[str] = []
    options: list[tuple[str, str]] = []
    while ours:
        word = ours.pop(0)
        if not word.startswith("-"):
            verbs.append(word)
            continue
        name, equals, value = word.partition("=")
        if not equals and name not in FLAGS and ours and not ours[0].startswith("-"):
            value = ours.pop(0)
        name = SHORT.get(name, name)
        options.append((SAME.get(name, name), value))
    return verbs or [""], options, command


def _number(options: list[tuple[str, str]], wanted: str) -> int | None:
    found = next((value for name, value in options if name == wanted), "")
    return int(found) if re.fullmatch(r"\d{1,6}", found) else None


def _gpus(draft: Draft, value: str) -> bool:
    if re.fullmatch(r"\d{1,4}(\.0+)?", value):
        draft.set("resources.gpus", int(float(value)))
        return True
    return False


def _claim(draft: Draft, value: str) -> bool:
    parts = dict(part.partition("=")[::2] for part in value.split(",") if "=" in part)
    if not parts and value.count(":") in (1, 2):
        parts = dict(zip(("claimname", "path", "mode"), value.split(":"), strict=False))
    if not parts.get("claimname") or not parts.get("path", "").startswith("/"):
        return False
    volume = {"claim": parts["claimname"], "path": parts["path"]}
    read_only = parts.get("mode") == "ro" or "readonly" in value.split(",")
    known = draft.fields.setdefault("volumes", [])
    if any(one["path"] == volume["path"] for one in known) or volume["claim"].split() != [volume["claim"]]:
        return False
    known.append(volume | ({"read_only": True} if read_only else {}))
    return True


def _extra(draft: Draft, value: str) -> bool:
    name, equals, amount = value.partition("=")
    if equals:
        draft.put(("resources", "extra", name), amount)
    return bool(equals)


def _env(draft: Draft, value: str) -> bool:
    name, equals, text = value.partition("=")
    if equals:
        draft.put(("env", name), text)
    return bool(equals)


def _networks(draft: Draft, value: str) -> bool:
    name, equals, text = value.partition("=")
    if equals and "networks" in name:
        draft.put(("network", "annotations", name), text)
        return True
    return False


def _amount(path: str) -> Callable[[Draft, str], bool]:
    def carry(draft: Draft, value: str) -> bool:
        text = value.replace("GB", "G").replace("MB", "M")
        try:
            Quantity.parse(text)
        except ValueError:
            return False
        draft.set(path, text)
        return True

    return carry


def _text(path: str) -> Callable[[Draft, str], bool]:
    def carry(draft: Draft, value: str) -> bool:
        draft.set(path, value)
        return True

    return carry


def _restarts(draft: Draft, value: str) -> bool:
    if re.fullmatch(r"\d{1,6}", value):
        draft.set("failure.restarts", int(value))
        return True
    return False


def _clean(draft: Draft, value: str) -> bool:
    draft.set("failure.clean", value.lower())
    return True


def _interactive(draft: Draft, value: str) -> bool:
    draft.set("engines.runai.interactive", True)
    return True


def _nothing(draft: Draft, value: str) -> bool:
    return True


CARRY: dict[str, Callable[[Draft, str], bool]] = {
    "--image": _text("image"), "--gpu": _gpus, "--cpu": _amount("resources.cpu"),
    "--memory": _amount("resources.memory"), "--environment": _env, "--extended-resource": _extra,
    "--existing-pvc": _claim, "--pvc": _claim, "--annotation": _networks, "--working-dir": _text("workdir"),
    "--project": _text("engines.runai.project"), "--backoff-limit": _restarts, "--clean-pod-policy": _clean,
    "--interactive": _interactive, "--priority": _text("schedule.priority"),
    "--auto-deletion-time-after-completion": _text("failure.ttl"),
    "--name": _nothing, "--workers": _nothing, "--no-master": _nothing, "--slots-per-worker": _nothing,
    "--framework": _nothing, "-f": _nothing, "--command": _nothing, "--dry-run": _nothing,
}  # fmt: skip


def _option(draft: Draft, option: str, value: str) -> None:
    carry = CARRY.get(option)
    if carry and carry(draft, value):
        return
    why = WHY.get(option) or ("this value has no counterpart in a spec" if carry else "a spec has no such field")
    if option == "--large-shm":
        why = SHM_NEEDS_A_SIZE
    draft.lost.append(Lost(COMMAND, f"{option} {value}".strip(), why))
