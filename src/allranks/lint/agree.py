"""Pods of one gang that were told different things of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from allranks.lint.rule import ERROR, PYTORCH, Found, Rule, Subject
from allranks.manifest.field import Field
from allranks.manifest.gang import Role, placed_words
from allranks.manifest.launch import Launch, glimpse

SAME = ("nnodes", "nproc_per_node", "master_port", "rdzv_backend", "rdzv_id", "rdzv_endpoint")
ALIKE = (
    "One gang has one number of nodes and of ranks of each: torchrun waits for those that never come, or ends at once."
)

NOTHING = (Field(None), "")


def pods_disagree(subject: Subject) -> Iterator[Found]:
    """Options or PET_* variables of one role that are not the other's."""
    for role in islice(subject.roles, 1, None):
        first, other = _said(subject.roles[0]), _said(role)
        for name in SAME:
            (said, value), (at, found) = first.get(name, NOTHING), other.get(name, NOTHING)
            meant = [_meant(subject, name, text) for text in (value, found)]
            if all(meant) and meant[0] != meant[1]:
                what = f"{role.name}: {name} is {found}, in the {subject.roles[0].name} it is {value}"
                line = said.position.line
                yield Found(at, f"{what} (line {line})", f"write {_as(name, at)}{_right(subject, name, value)} in both")


def launchers_disagree(subject: Subject) -> Iterator[Found]:
    """One role that is started by torchrun, and another that is not."""
    launches = [(role, glimpse(role.argv)) for role in subject.roles if role.argv]
    for role, launch in launches[1:]:
        first, there = launches[0]
        if launch.launcher != there.launcher and not (launch.doubt or there.doubt):
            what = f"the {role.name} starts {_how(launch)}, the {first.name} {_how(there)}"
            yield Found(_command(role), what, f"start both by {_how(there)}")


def nodes_against_replicas(subject: Subject) -> Iterator[Found]:
    """A number of nodes that is not the number of pods."""
    pods = sum(role.count for role in subject.roles)
    for role in subject.roles:
        at, value = _said(role).get("nnodes", (Field(None), ""))
        least, _, most = value.partition(":")
        if least.isdigit() and not int(least) <= pods <= int(most if most.isdigit() else least):
            counts = " + ".join(f"{one.count} {one.name}" for one in subject.roles)
            fix = f"write {_as('nnodes', at)}{pods}, or --nnodes=$PET_NNODES, or other replicas"
            yield Found(at, f"{role.name}: nnodes is {value}, but {counts} are {pods} pods", fix)


def _said(role: Role) -> dict[str, tuple[Field, str]]:
    """What torchrun is told in this role, with its place: by a variable, over that by an option."""
    said = {}
    for name in SAME:
        if entry := role.env.get(f"PET_{name.upper()}"):
            said[name] = (entry["value"], entry["value"].text)
    for name, values in glimpse(role.argv).options.items():
        if name in SAME and values:
            said[name] = (_place(role, name), values[-1])
    return said


def _meant(subject: Subject, name: str, value: str) -> str:
    """What a value is in the pod; empty where that cannot be told from the manifest."""
    pods, per_node = sum(role.count for role in subject.roles), subject.spec["nprocPerNode"].text
    known = {"nnodes": str(pods), "nproc_per_node": per_node}.get(name, "")
    if value.strip("${}") == f"PET_{name.upper()}":
        return known
    return "" if "$" in value else value


def _place(role: Role, option: str) -> Field:
    spellings = (f"--{option}", f"--{option.replace('_', '-')}")
    words = placed_words(role.container)
    return next((one for one in words if any(name in one.text for name in spellings)), _command(role))


def _command(role: Role) -> Field:
    return role.container["command"] or role.container["args"] or role.container


def _as(name: str, at: Field) -> str:
    return f"PET_{name.upper()}: " if at.path.endswith(".value") else f"--{name}="


def _right(subject: Subject, name: str, value: str) -> str:
    return str(sum(role.count for role in subject.roles)) if name == "nnodes" else value


def _how(launch: Launch) -> str:
    return "one process a pod" if launch.launcher == "native" else launch.launcher


RULES = (
    Rule("pods-disagree", ERROR, PYTORCH, pods_disagree, ALIKE),
    Rule("launchers-disagree", ERROR, PYTORCH, launchers_disagree,
        "Ranks that torchrun starts and ranks that nobody starts wait for each other for ever."),
    Rule("nodes-against-replicas", ERROR, PYTORCH, nodes_against_replicas, ALIKE),
)  # fmt: skip
