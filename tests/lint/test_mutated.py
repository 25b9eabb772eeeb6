"""Whatever stands in a manifest, lint and convert end with findings, a spec or one clear error, never a traceback."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from allranks.convert.kinds import CARRY, from_manifest
from allranks.errors import SpecError
from allranks.lint.files import lint
from allranks.manifest.gang import Manifest
from allranks.manifest.read import read
from allranks.spec.load import dump, parse
from tests.lint import good

MANIFESTS = [
    list(YAML(typ="safe").load_all(text)) for name, text in good.ALL.items() if name not in ("HOSTFILE", "SPEC")
]
VALUES = st.one_of(
    st.sampled_from(
        [
            None,
            True,
            -1,
            0,
            10**30,
            1.5,
            "",
            "x",
            "9" * 400,
            "-5",
            "$(A)",
            "a b",
            "\0",
            "é\u2028",
            [],
            {},
            [None],
            {"a": {}},
        ]
    ),
    st.text(max_size=8),
    st.recursive(
        st.integers(),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    ),
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container and key in it."""
    found: list[tuple[Any, Any]] = []
    steps = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, below in steps:
        found += [(value, key), *places(below)]
    return found


def mutated(data: st.DataObject) -> str:
    documents = deepcopy(data.draw(st.sampled_from(MANIFESTS)))
    for _ in range(data.draw(st.integers(1, 4))):
        holder, key = data.draw(st.sampled_from(places(documents)))
        kept = data.draw(st.sampled_from(["replace", "remove", "rename"]))
        if kept == "replace" or isinstance(holder, list):
            holder[key] = deepcopy(data.draw(VALUES))  # a later step may change it
        elif kept == "remove":
            del holder[key]
        else:
            holder[data.draw(st.text(max_size=6))] = holder.pop(key)
        if not places(documents):
            break
    return "\n---\n".join(json.dumps(document, ensure_ascii=False) for document in documents)


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_a_manifest_with_anything_anywhere_is_linted_and_converted_or_refused(data: st.DataObject) -> None:
    text = mutated(data)
    lint(text, "m.yaml")
    told: list[str] = []
    contents = read(text, "m.yaml")
    for root in contents.documents:
        if root["kind"].text not in CARRY or (root["kind"].text == "Job" and not root["apiVersion"]):
            continue
        try:
            job, lost = from_manifest(Manifest("m.yaml", root, contents.documents))
        except SpecError as error:
            told.append(str(error))
            continue
        assert parse(dump(job)) == job
        told += [one.where for one in lost]
    assert all(one.startswith("m.yaml") for one in told)


@pytest.mark.parametrize("name", good.ALL)
def test_a_file_cut_off_anywhere_is_linted_or_told(name: str) -> None:
    text = good.ALL[name]
    for end in range(0, len(text), 17):
        linted = lint(text[:end], name)
        assert linted.gangs or linted.unread or linted.nothing
