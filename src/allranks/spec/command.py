"""A Job from a command line, with no file: ``allranks run --nodes 2 --ranks 4 -- python train.py``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from pydantic import ValidationError

from allranks.errors import UsageError
from allranks.spec.job import Job

OPTIONS = {"ranks_per_node": "--ranks", "failure.restarts": "--restarts", "run": "the command"}
PYTHON = re.compile(r"(python|pypy)[\d.]*")


def from_command(
    argv: Sequence[str], *, nodes: int = 1, ranks: int | None = None, name: str | None = None, **fields: Any
) -> Job:
    """Make a job that runs ``argv`` as every rank; ``fields`` are further fields of Job. Raises UsageError."""
    if not argv:
        raise UsageError("no command; write it after '--', for example: allranks run --nodes 2 -- python train.py")
    try:
        return Job(name=name or name_of(argv), nodes=nodes, ranks_per_node=ranks, run=_run(argv), **fields)
    except ValidationError as error:
        raise UsageError(_told(error)) from error


def name_of(argv: Sequence[str]) -> str:
    """Name a run after its script, its module or its program: ``python train.py`` is ``train``."""
    words = [PurePath(word).name for word in argv]
    if PYTHON.fullmatch(words[0]) and "-m" in argv[:-1]:
        return label(argv[list(argv).index("-m") + 1].rpartition(".")[2])
    script = next((word for word in words if word.endswith((".py", ".sh"))), words[0])
    return label(PurePath(script).stem)


def label(text: str) -> str:
    """Turn any text into a DNS label of at most 40 characters."""
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).lstrip("-0123456789")
    return label[:40].rstrip("-") or "job"


def _run(argv: Sequence[str]) -> str | tuple[str, ...]:
    """Write the command as a person would: as text, or as a list where a word needs quotes."""
    plain = all(shlex.quote(word) == word for word in argv) and "=" not in argv[0]
    return " ".join(argv) if plain else tuple(argv)


def _told(error: ValidationError) -> str:
    from allranks.spec.wording import sentence

    return "\n".join(_by_option(sentence(problem)) for problem in error.errors(include_url=False))


def _by_option(told: str) -> str:
    """Say ``--nodes: found 0`` for ``nodes: found 0``."""
    field, found, rest = told.partition(": found ")
    return f"{OPTIONS.get(field, '--' + field.replace('.', ' '))}{found}{rest}" if found else told
