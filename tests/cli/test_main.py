"""The entry: verbs, help, and one message with an exit code for whatever goes wrong."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from allranks.cli import main
from allranks.errors import EngineError
from tests.cli.conftest import ENTRY, Allranks


@pytest.mark.parametrize("verb", [*main.VERBS, "bench serve"])
def test_every_verb_has_help_that_fits_a_screen(allranks: Allranks, verb: str) -> None:
    said = allranks(*verb.split(), "--help")
    assert said.code == 0
    assert said.out.startswith(f"Usage: allranks {verb}")
    assert len(said.out.splitlines()) <= 24
    assert max(map(len, said.out.splitlines())) <= 80


@pytest.mark.parametrize("verb", main.VERBS)
def test_every_verb_has_a_module_with_its_command(verb: str) -> None:
    assert callable(import_module(f"allranks.cli.{verb}").command)


def test_help_lists_every_verb_and_fits_a_screen(allranks: Allranks) -> None:
    lines = allranks("--help").out.splitlines()
    assert len(lines) <= 32
    for verb, what in main.VERBS.items():
        assert any(line.split() == [verb, *what.split()] for line in lines)
    assert allranks().code == 2


def test_help_imports_no_verb_and_nothing_heavy() -> None:
    code = (
        "import sys; from allranks.cli.main import call; call(['--help']);"
        "print({'pydantic', 'rich', 'ruamel', 'torch', 'asyncio', 'subprocess'} & {*sys.modules});"
        "print(sorted(m for m in sys.modules if m.startswith('allranks')))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert out[-2:] == ["set()", "['allranks', 'allranks.cli', 'allranks.cli.main', 'allranks.errors']"]


def test_the_version_is_told(allranks: Allranks) -> None:
    assert allranks("--version").out == "allranks 0.1.0\n"


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("statsu", "; did you mean status?"),
        ("train.py", "; did you mean: allranks run -- python SCRIPT"),
        ("job.yaml", "; did you mean: allranks run job.yaml"),
        ("xyzzy", ""),
    ],
)
def test_a_mistyped_verb_is_a_usage_error_with_the_way_out(allranks: Allranks, word: str, hint: str) -> None:
    said = allranks(word)
    assert (said.code, said.err) == (2, f"allranks: no such command: {word}{hint}\nTry 'allranks --help'.\n")


def test_an_error_of_ours_is_its_message_and_its_exit_code(allranks: Allranks, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise EngineError("the engine refused\nand says why")

    monkeypatch.setattr("allranks.engines.usable", refuse)
    said = allranks("list")
    assert (said.code, said.out, said.err) == (69, "", "allranks: the engine refused\nand says why\n")


def test_an_interrupt_is_quiet(allranks: Allranks, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("allranks.engines.usable", interrupt)
    said = allranks("list")
    assert (said.code, said.out, said.err.strip()) == (130, "", "")


def test_what_nobody_expected_is_one_line_and_a_saved_traceback(
    allranks: Allranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug() -> None:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr("allranks.engines.usable", bug)
    said = allranks("list")
    start = "allranks broke: ZeroDivisionError: by nought; please report this with "
    assert said.code == 70
    assert said.err.startswith(start)
    file = Path(said.err.removeprefix(start).strip())
    assert "in bug" in file.read_text()
    file.unlink()


def test_a_reader_that_goes_away_is_no_error_message() -> None:
    command = f"{' '.join(ENTRY)} run --help | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout in ("141\n", "0\n")  # the latter when it was quicker than its reader


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("{allranks} engines >&-", 0, ""),
        ("{allranks} engines >/dev/full", 74, "allranks: cannot write to standard output: No space left on device"),
        (
            "mkdir gone; cd gone; rmdir ../gone; {allranks} run -- true",
            74,
            "allranks: the current folder is gone (No such file or directory); change to one that is there",
        ),
        ("{allranks} list <&- >&- 2>&-", 0, ""),
    ],
)
def test_odd_streams_and_folders_are_told_in_one_line(tmp_path: Path, command: str, code: int, message: str) -> None:
    line = command.format(allranks=" ".join(ENTRY))
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (code, message)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed_for_every_shell(allranks: Allranks, shell: str) -> None:
    said = allranks("--show-completion", shell)
    assert said.code == 0
    assert "_ALLRANKS_COMPLETE" in said.out
