"""A launch command, from wherever it stands, as launcher, ranks_per_node and run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from allranks.convert.draft import Draft, Lost
from allranks.errors import SpecError
from allranks.manifest.launch import Launch, take_apart
from allranks.manifest.shell import word
from allranks.spec.command import name_of
from allranks.spec.field import OURS
from allranks.spec.job import Job

MPI_OWN = ("OMPI_", "PMIX_", "PRTE_", "I_MPI_", "HYDRA_")


@dataclass(frozen=True)
class Around:
    """What is known of a command from around it: the nodes, the ranks of each, whether one node alone ran it."""

    nodes: int
    per_node: int | None = None
    is_launcher: bool = False


def carry_command(draft: Draft, argv: Sequence[str], around: Around, where: str) -> Launch:
    """Set nodes, ranks_per_node, launcher and run. ``where`` is named where something is lost."""
    launch = take_apart(argv)
    if kept := _kept_whole(launch, around):
        _keep(draft, argv, around, where, kept)
        return launch
    draft.set("nodes", around.nodes)
    if launch.launcher != "native":
        draft.set("launcher", launch.launcher)
    if per_node := _per_node(draft, launch, around, where):
        draft.set("ranks_per_node", per_node)
    if around.is_launcher and launch.launcher == "native":
        why = "one node alone ran this, here every rank does: write into 'run' what it starts"
        draft.lost.append(Lost(where, "the command", why))
    draft.set("run", _written(_with_prelude(draft, launch, around, where)))
    _settings(draft, launch)
    for what, why in launch.lost:
        draft.lost.append(Lost(where, what, why))
    return launch


def _kept_whole(launch: Launch, around: Around) -> str:
    """Why the command is not taken apart."""
    if launch.doubt:
        return launch.doubt
    once_a_node = [line for line in launch.before if not _is_setting(line)]
    if once_a_node and launch.launcher in ("torchrun", "deepspeed") and not around.is_launcher:
        return f"{once_a_node[0]!r} before {launch.launcher} runs once a node"
    return ""


def _is_setting(line: str) -> bool:
    return line.startswith("export ") or bool(word(line).raw.partition("=")[1] and " " not in line.partition("=")[0])


def _keep(draft: Draft, argv: Sequence[str], around: Around, where: str, reason: str) -> None:
    draft.set("nodes", around.nodes)
    draft.set("launcher", "once")
    draft.set("run", _written(tuple(argv)))
    only_one = "; before, one node alone ran it" if around.is_launcher else ""
    if draft.engine in ("pytorchjob", "trainjob"):
        only_one = f"; it finds the other nodes by variables that only {draft.engine} sets"
    why = (
        f"kept whole, as one process a node, because of {reason}{only_one}: what it starts is not watched rank by rank"
    )
    draft.lost.append(Lost(where, "the command", why))


def _per_node(draft: Draft, launch: Launch, around: Around, where: str) -> int | None:
    """Ranks of each node, by the command before all else."""
    if launch.per_node:
        return launch.per_node
    if launch.launcher == "mpirun" and launch.ranks:
        count, rest = divmod(launch.ranks, around.nodes)
        if count and not rest:
            return count
        why = f"{launch.ranks} ranks are not the same number on each of {around.nodes} nodes"
        draft.lost.append(Lost(where, f"-np {launch.ranks}", why))
    if launch.launcher == "native" and not around.is_launcher:
        return 1 if draft.fields.get("resources", {}).get("gpus", 0) > 1 else around.per_node
    return around.per_node


def _with_prelude(draft: Draft, launch: Launch, around: Around, where: str) -> tuple[str, ...]:
    """The ranks' command, and before it what each rank may do for itself."""
    if not launch.before:
        return launch.argv
    settings = [line for line in launch.before if _is_setting(line)]
    others = [line for line in launch.before if not _is_setting(line)]
    if around.is_launcher and launch.launcher != "native":
        why = "it ran once, before the ranks; do it in the image, or in the script"
        draft.lost.extend(Lost(where, line, why) for line in others)
    else:
        settings = launch.before
    if not settings:
        return launch.argv
    last = launch.script or f"exec {shlex.join(launch.run)}"
    return ("bash", "-c", "\n".join([*settings, last]))


def _settings(draft: Draft, launch: Launch) -> None:
    if launch.workdir and "workdir" not in draft.fields:
        draft.set("workdir", launch.workdir)
    for name, value in launch.env.items():
        if not name.startswith(MPI_OWN) and name not in OURS:
            draft.put(("env", name), value)
    if launch.restarts:
        draft.set("failure.restarts", launch.restarts)
    if launch.deadline:
        draft.set("failure.deadline", f"{launch.deadline}s")


def _written(argv: tuple[str, ...]) -> str | list[str]:
    """As a person would write it: text, or a list where a word needs quotes."""
    plain = all(shlex.quote(text) == text for text in argv) and argv and "=" not in argv[0]
    return " ".join(argv) if plain else list(argv)


def from_command(argv: Sequence[str], hosts: Sequence[tuple[str, int | None]] = ()) -> tuple[Job, list[Lost]]:
    """Make a spec of a launch command, on the hosts of a hostfile where one is given. Raises SpecError."""
    if not argv or not argv[0]:
        raise SpecError("the command: found nothing; write it after '--', such as: -- torchrun train.py")
    draft = Draft("the command")
    launch = take_apart(argv)
    slots = {count for _, count in hosts if count}
    nodes = len(hosts) or launch.nodes or _nodes_of(launch)
    around = Around(max(nodes, 1), slots.pop() if len(slots) == 1 else None, is_launcher=bool(hosts))
    launch = carry_command(draft, argv, around, "the command")
    if len(slots) > 0:
        draft.lost.append(Lost("the hostfile", "slots", "all nodes of a gang have the same number of ranks"))
    if not hosts and launch.hostfile:
        why = f"name the hostfile too, for the number of nodes: allranks convert {launch.hostfile} -- COMMAND"
        draft.lost.append(Lost("the command", f"the hosts of {launch.hostfile}", why))
    if hosts:
        draft.lost.append(Lost("the hostfile", "the hosts' names", "the engine finds the nodes"))
    draft.set("name", name_of(launch.run or tuple(argv)))
    return draft.job(), draft.lost


def _nodes_of(launch: Launch) -> int:
    if launch.ranks and launch.per_node and launch.launcher == "mpirun":
        return max(launch.ranks // launch.per_node, 1)
    return 1
