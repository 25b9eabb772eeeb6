"""The ``runai`` program: which one is there, and what is said where there is none."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from allranks import engines
from allranks.engines.kubernetes import client
from allranks.engines.runai import program
from allranks.errors import EngineError, NotFound
from tests.engines.kubernetes.jobs import CLASSIC, job
from tests.engines.runai import stand_in


@pytest.fixture(autouse=True)
def nothing_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> Path:
    record = stand_in.install(folder, sys.executable)
    for name, value in (
        ("PATH", f"{folder}:{os.environ['PATH']}"),
        ("RUNAI_VERSION", version),
        ("RUNAI_RECORD", record),
    ):
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("KUBECTL", raising=False)
    return record


@pytest.mark.parametrize("version", [1, 2])
def test_the_version_is_the_one_whose_command_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    installed(tmp_path, monkeypatch, str(version))
    assert program.version() == version
    argv = engines.get("runai").plan(job(CLASSIC), tmp_path).documents[-1]["argv"]
    assert argv[1] == {1: "submit-dist", 2: "training"}[version]


def test_a_program_that_is_neither_is_told_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, "3")
    with pytest.raises(EngineError, match=r"neither .* nor .* its version is: Version: 2\.18\.3"):
        program.version()


def test_without_the_program_it_is_said_where_to_get_it_and_what_else_there_is() -> None:
    why = engines.get("runai").available()
    assert "runai is not on PATH" in why
    assert "Researcher Command Line Interface" in why
    assert "allranks plan --engine runai" in why


def test_every_word_arrives_as_it_was_without_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = installed(tmp_path, monkeypatch, "2")
    words = [
        "training",
        "pytorch",
        "submit",
        "a",
        "--workers",
        "1",
        "-e",
        "A=$(id) 'x'\n\"y\" ;&",
        "--",
        "sh",
        "-c",
        "*",
    ]
    assert "submitted successfully" in program.tell(words)
    assert json.loads(record.read_text().splitlines()[-1]) == words


def test_without_a_cluster_no_secret_is_put_into_a_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = installed(tmp_path, monkeypatch, "2")
    engine = engines.get("runai")
    plan = engine.plan(job(CLASSIC), tmp_path)
    with pytest.raises(EngineError, match="KUBECONFIG"):
        engine.submit(plan, detach=True)
    assert not [line for line in record.read_text().splitlines() if "--help" not in line]


def test_without_a_cluster_the_program_tells_how_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = installed(tmp_path, monkeypatch, "1")
    status = engines.get("runai").status("digits")
    assert (status.phase, status.reason) == ("running", "Run:ai says: Running")
    assert json.loads(record.read_text().splitlines()[-1]) == ["describe", "job", "digits"]


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_workload_that_the_program_does_not_know_is_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    installed(tmp_path, monkeypatch, version)
    for do in (engines.get("runai").status, lambda name: engines.get("runai").cancel(name, reason="")):
        with pytest.raises(NotFound, match=f"no run named {stand_in.NOBODY}: the program runai does not know it"):
            do(stand_in.NOBODY)


def test_a_cluster_that_is_named_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "why_not", lambda: "")
    assert engines.get("runai").available() == ""
