"""A spec file, a command after ``--``, and options that override fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allranks.engines import ENGINES
from tests.cli.conftest import Allranks

DASHES = "put the ranks' command after --, as in: --"
SPEC = """\
kind: Job
name: digits
nodes: 2
run: sh -c true
env: {A: from-file, B: from-file}
failure: {restarts: 1, grace: 5s}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "job.yaml").write_text(SPEC)
    return folder / "job.yaml"


def planned(allranks: Allranks, *argv: str) -> dict[str, Any]:
    said = allranks("plan", "-o", "json", *argv)
    assert said.code == 0, said.err
    document: dict[str, Any] = json.loads(said.out)["documents"][0]
    return document


def test_a_file_is_planned_as_it_stands_and_from_its_own_folder(allranks: Allranks, spec: Path) -> None:
    plan = planned(allranks, "project/job.yaml")
    assert (plan["run"], plan["nodes"], plan["restarts"], plan["argv"]) == ("digits", 2, 1, ["sh", "-c", "true"])
    assert plan["workdir"] == str(spec.parent)


def test_options_win_over_the_file_and_leave_the_rest_of_it(allranks: Allranks, spec: Path) -> None:
    options = [
        "--name",
        "other",
        "--nodes",
        "3",
        "--ranks",
        "4",
        "--restarts",
        "0",
        "-e",
        "A=1",
        "--launcher",
        "torchrun",
    ]
    plan = planned(allranks, str(spec), *options)
    assert (plan["run"], plan["nodes"], plan["ranks_per_node"], plan["launcher"]) == ("other", 3, 4, "torchrun")
    assert (plan["restarts"], plan["grace"]) == (0, 5.0)
    assert plan["env"] == {"A": "1", "B": "from-file"}


def test_a_command_takes_the_place_of_the_files_own(allranks: Allranks, spec: Path) -> None:
    assert planned(allranks, str(spec), "--", "sh", "-x")["argv"] == ["sh", "-x"]


def test_a_command_needs_no_file_and_starts_where_it_was_typed(allranks: Allranks, tmp_path: Path) -> None:
    plan = planned(allranks, "--nodes", "2", "--ranks", "3", "--", "sh", "-c", "exit 3", "--", "--nodes", "9")
    assert plan["argv"] == ["sh", "-c", "exit 3", "--", "--nodes", "9"]
    assert (plan["run"], plan["nodes"], plan["ranks_per_node"], plan["workdir"]) == ("sh", 2, 3, str(tmp_path))


def test_job_yaml_is_the_spec_when_none_is_named(
    allranks: Allranks, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(spec.parent)
    assert planned(allranks)["run"] == "digits"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            [],
            "nothing to run: name a spec (allranks run job.yaml), give a command "
            "(allranks run --nodes 2 -- python train.py), or write a spec with: allranks init",
        ),
        (["--"], "no command after --"),
        (
            ["python", "train.py", "--epochs", "3"],
            "put the ranks' command after --, as in: -- python train.py --epochs 3",
        ),
        (
            ["--nodes", "2", "train.py", "--lr", "1"],
            "put the ranks' command after --, as in: -- python train.py --lr 1",
        ),
        (["train.py"], f"train.py is no spec; {DASHES} python train.py"),
        (["--env", "A", "--", "sh"], "--env A: allowed is NAME=VALUE"),
        (["--nodes", "0", "--", "sh"], "--nodes: found 0; allowed is a whole number, 1 or more"),
        (
            ["--env", "RANK=1", "--", "sh"],
            "--env RANK: found 'RANK'; allranks sets this one for every rank; leave it out",
        ),
        (["--", "", "x"], "the command after --: found '' as its program; is a variable empty?"),
        (["--engine", "locl", "--", "sh"], f"no such engine: locl; allowed: {', '.join(ENGINES)}; did you mean local?"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error_with_the_way_out(
    allranks: Allranks, argv: list[str], message: str
) -> None:
    said = allranks("run", *argv)
    assert (said.code, said.out, said.err.splitlines()[0]) == (2, "", f"allranks: {message}")


@pytest.mark.parametrize("verb", ["run", "plan", "up"])
def test_every_verb_that_starts_a_gang_heeds_as(allranks: Allranks, verb: str) -> None:
    said = allranks(verb, "--as", "mpijb", "--", "sh")
    assert said.code == 2
    assert said.err.startswith("allranks: --as mpijb: no such engine to pretend; allowed: ")


def test_a_spec_that_was_not_named_is_named(allranks: Allranks, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(spec.parent)
    said = allranks("plan", "-o", "json")
    assert (said.code, said.err) == (0, "spec job.yaml, as none is named\n")


def test_a_wrong_spec_is_told_with_its_place(allranks: Allranks, spec: Path) -> None:
    spec.write_text(SPEC.replace("nodes: 2", "node: 2"))
    said = allranks("run", "project/job.yaml")
    assert (said.code, said.out) == (65, "")
    assert said.err.startswith("allranks: project/job.yaml:3:1: unknown field 'node'")


def test_a_script_that_is_not_there_is_told_before_anything_starts(allranks: Allranks, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    said = allranks("run", "--", "python3", "trian.py")
    assert said.code == 65
    assert said.err == f"allranks: no such script: trian.py in {tmp_path}; did you mean train.py?\n"


def test_plan_prints_yaml_and_its_notes_on_stderr(allranks: Allranks, spec: Path) -> None:
    spec.write_text(SPEC + "image: acme/train:1\n")
    said = allranks("plan", "project/job.yaml")
    assert said.out.startswith("run: digits\nengine: local\nversion:")
    why = "ranks are processes of this machine and see what is installed here"
    assert said.err == f"note: image: not used by engine local: {why}\n"


def test_plan_writes_nothing(allranks: Allranks, spec: Path) -> None:
    planned(allranks, str(spec))
    assert allranks("list", "-o", "json").out == "[]\n"


def test_init_writes_a_spec_that_plans_and_never_overwrites(allranks: Allranks, tmp_path: Path) -> None:
    said = allranks("init")
    assert (said.code, said.out) == (0, "wrote job.yaml; next: allranks run job.yaml\n")
    (tmp_path / "train.py").touch()
    assert planned(allranks, "job.yaml", "--", "sh")["run"] == "my-job"
    said = allranks("init")
    assert said.code == 2
    assert said.err == "allranks: job.yaml exists and is left as it is; name another: allranks init OTHER.yaml\n"


def test_init_gives_the_schema_to_editors(allranks: Allranks) -> None:
    assert json.loads(allranks("init", "--schema").out)["$defs"]["Job"]["properties"]["nodes"]["minimum"] == 1


def test_engines_tells_which_are_in_this_version(allranks: Allranks) -> None:
    rows = json.loads(allranks("engines", "-o", "json").out)
    assert "local" in [row["name"] for row in rows if row["available"]]
    assert "ray         Ray Serve, for services" in allranks("engines").out
