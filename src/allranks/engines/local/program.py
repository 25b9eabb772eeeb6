"""The command that every rank runs: found, checked and given its surroundings before anything is started."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from allranks.errors import SpecError
from allranks.node.environment import SOMEBODY_ELSES

OLDEST_PYTHON = (3, 8)

_PYTHON = re.compile(r"(python|pypy)[\d.]*")
_WITH_VALUE = {"-W", "-X", "--check-hash-based-pycs"}


def identity_notes(env: Mapping[str, str]) -> Iterator[str]:
    """Say which variables of this shell the ranks will not see, or will see with allranks' own value."""
    found = sorted(name for name in env if SOMEBODY_ELSES.fullmatch(name))
    if found:
        shown = ", ".join(f"{name}={env[name]}" for name in found[:6]) + (", ..." if len(found) > 6 else "")
        yield f"your environment already says who a rank is ({shown}); allranks sets its own for each rank"


def venv_first(env: Mapping[str, str], argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Put the virtual environment that allranks runs from first on the ranks' PATH, if it is the one with torch.

    Somebody who calls ``.venv/bin/allranks`` without activating it means that environment's ``python``. A PATH of
    the spec's own, an activated environment, or one without torch is left alone.
    """
    venv = Path(sys.prefix)
    named = "/" in argv[0] or "PATH" in env or os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    if named or sys.prefix == sys.base_prefix or not _has_torch():
        return dict(env), []
    path = os.environ.get("PATH", os.defpath)
    if path.split(os.pathsep)[0] == str(venv / "bin"):
        return dict(env), []
    note = f"PATH: {venv / 'bin'} comes first, where allranks itself runs and torch is installed"
    return {**env, "PATH": f"{venv / 'bin'}{os.pathsep}{path}"}, [note]


def _has_torch() -> bool:
    from sysconfig import get_path

    return Path(get_path("purelib"), "torch").is_dir() or Path(get_path("platlib"), "torch").is_dir()


def check(argv: Sequence[str], workdir: Path, env: Mapping[str, str]) -> None:
    """Raise SpecError for a program or a script that is not there, with the nearest name that is."""
    program = find(argv[0], workdir, env)
    if _PYTHON.fullmatch(os.path.basename(argv[0])):
        _check_script(argv, workdir)
        _check_version(argv[0], program, workdir, env)


def find(name: str, workdir: Path, env: Mapping[str, str]) -> str:
    """The file that a rank's shell would run. Raises SpecError when there is none, or it cannot be executed."""
    if "/" in name:
        return _executable(name, workdir)
    path = env.get("PATH", os.environ.get("PATH", os.defpath))
    found = shutil.which(name, path=_absolute_path(path, workdir))
    if found:
        return found
    hint = ""
    if (workdir / name).is_file():
        hint = f"; did you mean ./{name}?" if not name.endswith(".py") else f"; did you mean python {name}?"
    elif _PYTHON.fullmatch(name):
        there = next((other for other in ("python3", "python") if shutil.which(other, path=path)), "")
        hint = f"; did you mean {there}?" if there else ""
    raise SpecError(f"no such program: {name} in PATH ({path}){hint}")


def _executable(name: str, workdir: Path) -> str:
    file = workdir / name
    if not file.exists():
        raise SpecError(f"no such program: {file}{_nearest(file)}")
    if file.is_dir():
        raise SpecError(f"not a program but a folder: {file}")
    if not os.access(file, os.X_OK):
        way_out = f"run it as: python {name}" if file.suffix == ".py" else f"make it so: chmod +x {file}"
        raise SpecError(f"not executable: {file}; {way_out}")
    return str(file)


def _absolute_path(path: str, workdir: Path) -> str:
    """PATH as the ranks read it: its relative folders start from their workdir."""
    return os.pathsep.join(os.path.join(workdir, folder) for folder in path.split(os.pathsep))


def _check_script(argv: Sequence[str], workdir: Path) -> None:
    script = _script(argv)
    if script is None:
        return
    file = workdir / script
    if not file.exists():
        raise SpecError(f"no such script: {script} in {workdir}{_nearest(file)}")
    if file.is_dir() and not (file / "__main__.py").exists():
        raise SpecError(f"no script but a folder without __main__.py: {script} in {workdir}")
    if not os.access(file, os.R_OK):
        raise SpecError(f"cannot read the script: {file}")


def _script(argv: Sequence[str]) -> str | None:
    """The script among a Python command line's words; None for ``-c``, ``-m`` and standard input."""
    words = iter(argv[1:])
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return word
        elif word in ("-", "--help", "--version") or (not word.startswith("--") and set(word[1:]) & set("cmVh?")):
            return None
    return None


def _check_version(name: str, program: str, workdir: Path, env: Mapping[str, str]) -> None:
    """Our part in each rank's interpreter needs Python 3.8; ask the interpreter itself, which takes 10 ms."""
    question = "import sys; sys.stdout.write('%d.%d' % sys.version_info[:2])"
    try:
        answer = subprocess.run(
            [program, "-S", "-E", "-c", question],
            cwd=workdir,  # a version manager's python may be another one in another folder
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SpecError(f"{program} does not answer: {error}") from error
    version = answer.stdout.strip()
    if answer.returncode or not re.fullmatch(r"\d+\.\d+", version):
        said = (answer.stderr.strip().splitlines() or ["it printed no version"])[-1]
        raise SpecError(f"{program} is no working Python: {said}")
    if tuple(map(int, version.split("."))) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        raise SpecError(f"{name} is Python {version} ({program}); ranks need {oldest} or newer")


def _nearest(file: Path) -> str:
    try:
        near = get_close_matches(file.name, os.listdir(file.parent), n=1)
    except OSError:
        return ""
    return f"; did you mean {near[0]}?" if near else ""
