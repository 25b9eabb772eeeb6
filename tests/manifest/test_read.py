"""Files of manifests as they come: many documents, lists, JSON, anchors, templates, and what is not readable."""

from __future__ import annotations

import json
import time

import pytest

from allranks.errors import SpecError
from allranks.manifest.read import LARGEST_FILE, read, text_of

GANG = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: digits}\n"


def names(text: str) -> list[str]:
    return [document.at("metadata", "name").text for document in read(text, "f.yaml").documents]


@pytest.mark.parametrize(
    "text",
    [
        GANG,
        f"%YAML 1.2\n---\n{GANG}...\n",
        f"kind: Deployment\nspec: {{{{ broken\n---\n{GANG}---\n# nothing\n",
        f"kind: List\nitems:\n- kind: Secret\n- {GANG.replace(chr(10), chr(10) + '  ')}",
        json.dumps({"kind": "PyTorchJob", "metadata": {"name": "digits"}}, indent="\t"),
        "kind: List\nitems: [&a {kind: PyTorchJob, metadata: {name: digits}}]\n",
        "kind: PyTorchJob\nmetadata: {<<: [{name: digits}, {name: other}]}\n",
        "kind: !!str PyTorchJob\nmetadata: {name: &n digits, labels: {app: *n}}\n",
    ],
)
def test_a_gang_is_found_however_the_file_is_written(text: str) -> None:
    contents = read(text, "f.yaml")
    assert contents.unread == []
    assert names(text) == ["digits"]


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (f"a: b\n---\n{GANG}spec: {{{{ .Values.spec }}}}\n", 6, "this is a template, not YAML: found '{{ .Values"),
        (f"{GANG}spec:\n  {{{{- if .Values.gpu }}}}\n", 5, "render it first: helm template . | allranks lint -"),
        (f"{GANG}spec: '{{{{ .Values.spec }}}}'\n", 4, "this is a template, not YAML"),
        (f"{GANG}spec: [a\n", 5, "the file ends inside '[' or '{'; close it"),
        (f"{GANG}\tspec: a\n", 4, "found a tab"),
        (f"{GANG}spec: *none\n", 4, "the alias '*none' has no anchor above it"),
        (f"{GANG}spec: &s {{a: *s}}\n", 4, "the alias '*s' has no anchor above it"),
        (f"{GANG}spec: !Ref x\n", 4, "found the tag '!Ref'; Kubernetes knows none"),
        (f"{GANG}kind: Job\n", 4, "'kind' is given twice, first in line 2"),
        (f"{GANG}spec: {'[' * 80}\n", 4, "nested too deep; a manifest has at most 64 levels"),
        (f"{GANG}spec: [{'a, ' * 50_000}]\n", 4, "too many values; a manifest has at most 40,000"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told_with_its_line(text: str, line: int, why: str) -> None:
    unread = read(text, "f.yaml").unread
    assert why in unread[0].why
    assert unread[0].position.line == line


def test_aliases_of_aliases_are_counted_as_if_written_out() -> None:
    lines = [f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]" for i in range(20)]
    contents = read("\n".join([GANG + "a: &a [x]", *lines]), "f.yaml")
    assert "too many values" in contents.unread[0].why


def test_ten_megabytes_around_one_gang_are_read_quickly() -> None:
    bundle = "kind: ConfigMap\ndata: {a: b, c: d}\n---\n" * 270_000
    began = time.monotonic()
    assert names(bundle + GANG) == ["digits"]
    assert time.monotonic() - began < 60  # parsing all of it takes ten times as long


def test_a_file_without_a_gang_says_what_it_holds_and_what_was_meant() -> None:
    said = read("kind: PytorchJob\n", "f.yaml").nothing
    assert said.startswith("f.yaml: no gang in it, found PytorchJob; known are MPIJob, PyTorchJob")
    assert said.endswith("did you mean 'PyTorchJob'?")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("spec:\n  a: [1, 2\n", "f.yaml:3:1: the file ends inside '[' or '{'; close it"),
        ("kind: Secret\n---\nkind PyTorchJob\nspec:\n\ta: 1\n", "f.yaml:4:5: a ':' is not allowed here"),
        ("kind: Deployment\nx: {{ .Values.a }}\n", "f.yaml:2:4: this is a template, not YAML"),
        ("# nothing\n---\nkind: Secret\n", "f.yaml: no gang in it, found Secret"),
    ],
)
def test_broken_yaml_may_have_hidden_a_gang_and_is_told_with_its_line(text: str, said: str) -> None:
    assert read(text, "f.yaml").nothing.startswith(said)


def test_files_that_are_none_are_told_in_one_line(tmp_path: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path))
    (folder / "binary").write_bytes(b"kind: \xff")
    with (folder / "huge").open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    for name, why in (
        ("binary", "not UTF-8"),
        ("huge", "larger than 16 MiB"),
        ("none", "No such file"),
        (".", "directory"),
    ):
        with pytest.raises(SpecError, match=why):
            text_of(str(folder / name))
