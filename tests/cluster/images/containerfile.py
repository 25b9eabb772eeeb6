"""The instructions of a Containerfile, as far as this project's own use them.

ARG, FROM (one stage), RUN, COPY (files or patterns of files, one destination), ENV (one variable), USER, WORKDIR and
CMD (a JSON list). Anything else is an error, so that what is built here and what podman or docker build from the same
file cannot differ in silence.
Source: https://docs.docker.com/reference/dockerfile
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from string import Template
from typing import NamedTuple

from tests.cluster.errors import ClusterError

FILLED_IN = ("FROM", "USER", "WORKDIR")
"""Where the arguments are; RUN's variables are the shell's."""
KNOWN = ("ARG", "FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "CMD")


class BadContainerfile(ClusterError):
    """A line that cannot be followed: the file, what was found, what is allowed."""


class Step(NamedTuple):
    """One instruction, its continuation lines joined and the arguments filled in where a real build does that."""

    kind: str
    text: str


def read(path: Path, arguments: Mapping[str, str]) -> list[Step]:
    """The steps of the file at ``path``; ``arguments`` are what ``--build-arg`` would say.

    Raises:
        BadContainerfile: an instruction that is not known here.
    """
    steps: list[Step] = []
    known: dict[str, str] = {}
    workdir = "/"
    for line in _lines(path.read_text()):
        kind, _, text = line.partition(" ")
        if kind not in KNOWN:
            raise BadContainerfile(f"{path}: found {kind}, allowed are {', '.join(KNOWN)}")
        if kind == "ARG":
            name, _, default = text.partition("=")
            known[name] = arguments.get(name, default.strip('"'))
            text = f"{name}={known[name]}"
        elif kind == "WORKDIR":
            workdir = text
        elif kind == "COPY":
            names, _, destination = text.rpartition(" ")
            text = f"{names} {posixpath.join(workdir, destination).replace('/./', '/')}"
        steps.append(Step(kind, Template(text).substitute(known) if kind in FILLED_IN else text))
    return steps


def variables(steps: Iterable[Step], *kinds: str) -> dict[str, str]:
    """What the steps of these kinds (ARG, ENV) set."""
    return dict(step.text.split("=", 1) for step in steps if step.kind in kinds)


def configuration(steps: Iterable[Step]) -> dict[str, object]:
    """What containers of the image start with, in the words of the image specification."""
    last = {step.kind: step.text for step in steps}
    return {
        "Env": [f"{name}={value}" for name, value in variables(steps, "ENV").items()],
        "Cmd": json.loads(last["CMD"]),
        "WorkingDir": last.get("WORKDIR", "/"),
        "User": last.get("USER", "0"),
    }


def copied(steps: Iterable[Step], context: Path) -> Iterator[tuple[Path, str]]:
    """Each file that they copy, and where to in the image, from its top."""
    for *patterns, destination in (step.text.split() for step in steps if step.kind == "COPY"):
        for path in (path for pattern in patterns for path in sorted(context.glob(pattern))):
            yield path, (destination + path.name if destination.endswith("/") else destination).lstrip("/")


def _lines(text: str) -> list[str]:
    without_comments = re.sub(r"^\s*#.*\n", "", text, flags=re.M)
    joined = re.sub(r"\\\n\s*", "", without_comments)
    return [line.strip() for line in joined.splitlines() if line.strip()]
