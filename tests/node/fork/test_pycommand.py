"""Python command lines: what runs, which flags, and what cannot be forked."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from allranks.node.fork.pycommand import is_python, parse


@pytest.mark.parametrize(
    ("program", "python"),
    [("python", True), ("python3", True), ("/opt/venv/bin/python3.12", True), ("python3.13t", True),
     ("ipython", False), ("pythonw", False), ("./train.py", False), ("torchrun", False), ("python-config", False)],
)  # fmt: skip
def test_an_interpreter_is_known_by_its_name(program: str, python: bool) -> None:
    assert is_python(program) is python


@pytest.mark.parametrize(
    ("line", "flags", "kind", "target", "args"),
    [
        ("python train.py", "", "script", "train.py", ""),
        ("python train.py -m x --lr=1", "", "script", "train.py", "-m x --lr=1"),
        ("python -u train.py a", "-u", "script", "train.py", "a"),
        ("python -uB train.py", "-uB", "script", "train.py", ""),
        ("python -W error -X dev train.py", "-W error -X dev", "script", "train.py", ""),
        ("python -Werror -Xdev -O train.py", "-Werror -Xdev -O", "script", "train.py", ""),
        ("python -uW error train.py", "-uW error", "script", "train.py", ""),
        ("python -Xm train.py", "-Xm", "script", "train.py", ""),
        ("python --check-hash-based-pycs always train.py", "--check-hash-based-pycs always", "script", "train.py", ""),
        ("python -m pkg.mod a -u", "", "module", "pkg.mod", "a -u"),
        ("python -mpkg.mod a", "", "module", "pkg.mod", "a"),
        ("python -um pkg", "-u", "module", "pkg", ""),
        ("python -umpkg a", "-u", "module", "pkg", "a"),
        ("python nowhere.py", "", "script", "nowhere.py", ""),
    ],
)
def test_what_runs_is_read_as_the_interpreter_reads_it(
    line: str, flags: str, kind: str, target: str, args: str, tmp_path: Path
) -> None:
    command = parse(line.split(), str(tmp_path))
    assert command.forkable
    assert (command.kind, command.target) == (kind, target)
    assert (list(command.flags), list(command.args)) == (flags.split(), args.split())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("python", "standard input"),
        ("python -u", "standard input"),
        ("python - a", "standard input"),
        ("python -c print(1)", "-c has its program"),
        ("python -uc print(1)", "-c has its program"),
        ("python -i train.py", "-i is interactive"),
        ("python -ui train.py", "-i is interactive"),
        ("python -I train.py", "-I ignores PYTHONPATH"),
        ("python -E train.py", "-E ignores PYTHONPATH"),
        ("python -S train.py", "-S skips site"),
        ("python -V", "-V only prints"),
        ("python -m", "needs the name of a module"),
        ("python --version", "--version is not one of the options"),
        ("python -Z train.py", "-Z is not one of the options"),
        ("torchrun train.py", "not a python command"),
        ("", "not a python command"),
    ],
)
def test_what_cannot_be_forked_says_why(line: str, why: str) -> None:
    command = parse(line.split())
    assert not command.forkable
    assert why in command.why


def test_a_folder_and_a_zip_file_are_told_from_scripts(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    with zipfile.ZipFile(tmp_path / "packed", "w") as archive:
        archive.writestr("__main__.py", "")
    assert parse(["python", "app"], str(tmp_path)).kind == "directory"
    assert parse(["python", "packed"], str(tmp_path)).kind == "directory"


def test_the_first_entry_of_the_path_is_the_one_that_python_computes(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "app").mkdir()
    (tmp_path / "real" / "train.py").write_text("")
    os.symlink(tmp_path / "real" / "train.py", tmp_path / "link.py")
    cwd = str(tmp_path)

    def path0(*words: str, **env: str) -> str | None:
        return parse(["python", *words], cwd).path0(cwd, env)

    assert path0("real/train.py") == str(tmp_path / "real")
    assert path0("link.py") == str(tmp_path / "real")
    assert path0("-m", "real.train") == cwd
    assert path0("app") == str(tmp_path / "app")
    assert path0("-P", "real/train.py") is None
    assert path0("-uP", "real/train.py") is None
    assert path0("real/train.py", PYTHONSAFEPATH="1") is None
    assert path0("-XP", "real/train.py") == str(tmp_path / "real")
