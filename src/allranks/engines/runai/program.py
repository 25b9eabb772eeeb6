"""The ``runai`` program: which version is on PATH, and what it is told. Never by way of a shell."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Literal

from allranks.errors import EngineError, NotFound

Version = Literal[1, 2]
Verb = dict[Version, tuple[str, ...]]
ANSWERS_WITHIN, SUBMITS_WITHIN = 20.0, 120.0
HELP: Verb = {
    2: ("training", "pytorch", "submit", "--help"),
    1: ("submit-dist", "pytorch", "--help"),
}
"""What only that version has; both print a number of the platform's for ``runai version``."""
DELETE: Verb = {2: ("training", "pytorch", "delete"), 1: ("delete", "job")}
DESCRIBE: Verb = {2: ("training", "pytorch", "describe"), 1: ("describe", "job")}
LOGS: Verb = {2: ("training", "pytorch", "logs"), 1: ("logs",)}
UNKNOWN = ("not found", "not exist")
"""How it says that there is no such workload, in either version."""
MISSING = (
    "the program runai is not on PATH\n"
    "Your Run:ai installation has it: in its web page under Help (?), Researcher Command Line Interface. Without it, "
    "'allranks plan --engine runai' prints the line to type elsewhere, and the body of the REST request."
)


def path() -> str:
    """Where it is; empty where it is not."""
    return shutil.which("runai") or ""


def must() -> str:
    """Where it is. Raises EngineError, saying where to get it."""
    if found := path():
        return found
    raise EngineError(f"engine runai cannot start a gang here: {MISSING}")


def version() -> Version:
    """Which command line it has. Raises EngineError for one that is neither."""
    return _version(must())


@functools.cache
def _version(program: str) -> Version:
    for number, words in HELP.items():
        done = _call([program, *words], ANSWERS_WITHIN)
        if done.returncode == 0 and "--workers" in done.stdout + done.stderr:
            return number
    shown = _call([program, "version"], ANSWERS_WITHIN)
    said = " ".join((shown.stdout + shown.stderr).split())[:200]
    raise EngineError(
        f"{program} has neither 'training pytorch submit' (version 2) nor 'submit-dist pytorch' (version 1); "
        f"its version is: {said or 'not told'}"
    )


def tell(words: Sequence[str], seconds: float = ANSWERS_WITHIN) -> str:
    """Run ``runai WORDS`` to its end; returns what it printed. Raises EngineError with its last lines."""
    done = _call([must(), *words], seconds)
    said = done.stdout + done.stderr
    if done.returncode:
        last = "\n".join(said.strip().splitlines()[-5:])
        shown = " ".join(word for word in words[:4] if not word.startswith("-"))
        raise EngineError(f"runai {shown} ended with {done.returncode}: {last}")
    return said


def _call(argv: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=seconds,
            check=False, env={**os.environ, "NO_COLOR": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{argv[0]} {argv[1]} did not end within {seconds:.0f} s") from error
    except OSError as error:
        raise EngineError(f"{argv[0]} cannot be run: {error.strerror}") from error


def ask(verb: Verb, name: str, project: str = "") -> str:
    """Have it do something with one workload, of its current project where none is named; returns what it printed.

    Raises NotFound where it knows no such workload, EngineError.
    """
    try:
        return tell([*verb[version()], name, *(["--project", project] if project else [])])
    except EngineError as error:
        if any(words in str(error).lower() for words in UNKNOWN):
            raise NotFound(f"no run named {name}: the program runai does not know it") from error
        raise
