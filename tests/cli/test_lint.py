"""``allranks lint`` and ``allranks convert`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allranks.lint.files import RULES
from allranks.spec.load import load_job
from tests.cli.conftest import Allranks
from tests.lint import good

CRD = """\
kind: CustomResourceDefinition
spec:
  names: {kind: MPIJob}
  versions:
  - name: v2beta1
    storage: true
    schema:
      openAPIV3Schema:
        properties:
          apiVersion: {type: string}
          kind: {type: string}
          metadata: {type: object}
          spec:
            properties:
              slotsPerWorker: {type: integer}
              mpiReplicaSpecs: {x-kubernetes-preserve-unknown-fields: true}
"""


@pytest.fixture(autouse=True)
def files() -> None:
    for name, text in good.ALL.items():
        Path(name).write_text(text)


def test_lint_is_quiet_where_there_is_no_mistake(allranks: Allranks) -> None:
    assert allranks("lint", *good.ALL) == allranks("lint", "MPIJOB")
    assert allranks("lint", "MPIJOB").code == 0


def test_lint_tells_place_reason_and_fix_and_exits_with_1(allranks: Allranks) -> None:
    Path("bad.yaml").write_text(good.MPIJOB.replace('"4"', '"8"'))
    said = allranks("lint", "bad.yaml")
    assert (said.code, said.err) == (1, "")
    assert said.out == (
        "bad.yaml:21:13: error: -np 8, but 2 hosts x 2 slots are 4  [np-above-slots]\n"
        "    why: mpirun ends with 'not enough slots available'.\n"
        "    fix: write -np 4, or more slotsPerWorker or workers\n"
        "1 error, 0 warnings\n"
    )


def test_warnings_alone_exit_with_0(allranks: Allranks) -> None:
    Path("warn.yaml").write_text(good.MPIJOB.replace('"4"', '"2"'))
    said = allranks("lint", "warn.yaml", "-o", "json")
    assert said.code == 0
    found = json.loads(said.out)["findings"]
    assert [(one["rule"], one["line"], one["severity"]) for one in found] == [("np-below-slots", 21, "warning")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("apiVersion: v1\nkind: Service\n", "x.yaml: no gang in it, found Service; known are MPIJob"),
        ("kind: MPIJob\nspec: {{ .Values.x }}\n", "x.yaml:2:7: this is a template, not YAML"),
        ("kind: Job\nname: digits\nrun: x\nnods: 2\n", "x.yaml:4:1: unknown field 'nods'; did you mean 'nodes'?"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_exits_with_65(allranks: Allranks, text: str, said: str) -> None:
    Path("x.yaml").write_text(text)
    got = allranks("lint", "x.yaml")
    assert (got.code, got.out) == (65, "")
    assert got.err.startswith(said)
    assert allranks("lint", "none.yaml").code == 65


def test_the_installed_crd_says_which_fields_there_are(allranks: Allranks) -> None:
    Path("crd.yaml").write_text(CRD)
    said = allranks("lint", "MPIJOB", "--crd", "crd.yaml")
    assert said.code == 1
    assert "MPIJob has no field spec.runPolicy" in said.out
    assert allranks("lint", "MPIJOB", "--crd", "MPIJOB").code == 65


def test_the_rules_are_listed(allranks: Allranks) -> None:
    lines = allranks("lint", "--rules").out.splitlines()
    assert [line.split()[0] for line in lines] == [rule.name for rule in RULES]
    assert len(json.loads(allranks("lint", "--rules", "-o", "json").out)) == len(RULES)


def test_convert_prints_a_spec_that_loads_and_what_is_lost_on_stderr(allranks: Allranks) -> None:
    said = allranks("convert", "PYTORCHJOB")
    Path("job.yaml").write_text(said.out)
    job = load_job("job.yaml")
    assert (said.code, job.nodes, job.ranks, job.launcher) == (0, 4, 2, "torchrun")
    assert said.err.startswith("not carried: PYTORCHJOB:9:7: spec.pytorchReplicaSpecs.Master.restartPolicy: Never: ")
    assert allranks("lint", "job.yaml").code == 0


def test_convert_takes_command_lines_and_hostfiles(allranks: Allranks) -> None:
    assert "launcher: torchrun" in allranks("convert", "--", "torchrun", "--nnodes=2", "train.py").out
    assert "nodes: 2" in allranks("convert", "--", "runai", "submit-dist", "pytorch", "--workers=1", "--", "x").out
    said = allranks("convert", "HOSTFILE", "-o", "json", "--", "deepspeed", "train.py")
    assert json.loads(said.out)["spec"]["ranks_per_node"] == 8


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        ([], 2, "nothing to convert"),
        (["HOSTFILE"], 2, "HOSTFILE is a hostfile; give the command too"),
        (["MPIJOB", "--", "x"], 2, "MPIJOB is no hostfile"),
        (["SPEC"], 65, "SPEC: this is a spec already"),
        (["two.yaml"], 2, "two.yaml holds 2 gangs; choose one with --name: digits, other"),
        (["empty.yaml"], 65, "empty.yaml: no gang in it"),
        (["none.yaml"], 65, "none.yaml: No such file"),
    ],
)
def test_what_convert_cannot_do_is_one_message(allranks: Allranks, argv: list[str], code: int, said: str) -> None:
    Path("two.yaml").write_text(f"{good.MPIJOB}---\n{good.JOBSET.replace('digits', 'other')}")
    Path("empty.yaml").write_text("")
    got = allranks("convert", *argv)
    assert (got.code, got.out) == (code, "")
    assert said in got.err
    assert allranks("convert", "two.yaml", "--name", "other").out.startswith("kind: Job\nname: other\n")
