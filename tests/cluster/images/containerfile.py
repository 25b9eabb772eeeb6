"""The instructions of a Containerfile, as far as this project's own use them.

ARG, FROM (one stage), RUN, COPY (files, one destination), ENV, USER, WORKDIR and CMD (a JSON list). Anything else is an
error, so that what is built here and what podman or docker build from the same file cannot differ in silence.
Source: https://docs.docker.com/reference/dockerfile
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import NamedTuple

from tests.cluster.errors import ClusterError

KNOWN = ("ARG", "FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "CMD")


class BadContainerfile(ClusterError):
    """A line that cannot be followed: the file, what was found, what is allowed."""


class Step(NamedTuple):
    """One instruction, its continuation lines joined and the arguments before FROM filled in."""

    kind: str
    text: str


def read(path: Path, arguments: Mapping[str, str]) -> list[Step]:
    """The steps of the file at ``path``; ``arguments`` are what ``--build-arg`` would say.

    Raises:
        BadContainerfile: an instruction that is not known here.
    """
    steps: list[Step] = []
    known: dict[str, str] = {}
    for line in _lines(path.read_text()):
        kind, _, text = line.partition(" ")
        if kind not in KNOWN:
            raise BadContainerfile(f"{path}: found {kind}, allowed are {', '.join(KNOWN)}")
        if kind == "ARG":
            name, _, default = text.partition("=")
            known[name] = arguments.get(name, default)
            text = f"{name}={known[name]}"
        # As in a real build, only FROM is filled in here: RUN's variables are the shell's.
        steps.append(Step(kind, Template(text).substitute(known) if kind == "FROM" else text))
    return steps


def _lines(text: str) -> list[str]:
    without_comments = re.sub(r"^\s*#.*\n", "", text, flags=re.M)
    joined = re.sub(r"\\\n\s*", "", without_comments)
    return [line.strip() for line in joined.splitlines() if line.strip()]
