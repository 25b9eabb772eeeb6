"""Whatever a Job holds survives being written; whatever a file holds is a Job or a SpecError."""

from __future__ import annotations

import json
import time
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from allranks.errors import SpecError
from allranks.spec.field import OURS
from allranks.spec.job import Job
from allranks.spec.load import dump, parse
from allranks.spec.units import LONGEST, Duration, Quantity

characters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
AWKWARD = [
    "",
    " ",
    "4",
    "1e3",
    "true",
    "null",
    "~",
    "yes",
    "a: b",
    "a #b",
    "#",
    "- a",
    "-",
    "?",
    "'",
    '"',
    "\\",
    "a\nb",
]
AWKWARD += [
    " a\nb\n",
    "a\n\n",
    "\n",
    "a\nb ",
    "\ta",
    "a\tb",
    "...",
    "---",
    "&a",
    "*a",
    "!a",
    "<<",
    "%a",
    "@",
    "{",
    "[a]",
    ",",
]
AWKWARD += [
    "a\r\nb",
    "\x85",
    "\u2028",
    "\ufeff",
    "\x7f",
    "a:",
    "a\n\n  b\n",
    "0x1F",
    "0o7",
    ".5",
    "+1",
    "-.inf",
    "=",
    "\U0001f600",
]
text = st.one_of(st.text(characters, max_size=30), st.sampled_from(AWKWARD))
words = st.text(characters, min_size=1, max_size=20).filter(lambda word: word.split() == [word])
names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?(\.[a-z0-9])?", fullmatch=True)
keys = st.from_regex(r"([a-z0-9]{1,9}(\.[a-z0-9]{1,9})?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,9}[A-Za-z0-9])?", fullmatch=True)
values = st.from_regex(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,9}[A-Za-z0-9])?)?", fullmatch=True)
resources = st.from_regex(r"[a-z0-9]{1,9}(\.[a-z0-9]{1,9})?/[a-z0-9]", fullmatch=True)
others = resources.map("{}x".format)  # a count in two places is refused
paths = text.map("/".__add__)
env_names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True).filter(
    lambda name: name not in OURS and not name.startswith("ALLRANKS_")
)
amounts = st.builds(
    Quantity, st.integers(2**20, 2**63 - 1).map((10**9).__mul__), st.sampled_from(["decimal", "binary"])
)
durations = st.integers(1, LONGEST).map(Duration)
data = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), text),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(text, inner, max_size=4)),
    max_leaves=12,
)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Make mappings that hold any of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


volumes = st.one_of(
    st.fixed_dictionaries({"claim": names, "path": paths}, optional={"read_only": st.booleans()}),
    st.fixed_dictionaries({"host": paths, "path": paths}),
)
manifests = st.dictionaries(text, data, max_size=4)
fields = st.fixed_dictionaries(
    {
        "name": st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True),
        "run": st.one_of(
            st.lists(text, min_size=1, max_size=5).filter(lambda argv: bool(argv[0])),
            st.lists(st.from_regex(r"[a-z0-9_./-]+", fullmatch=True), min_size=1, max_size=5).map(" ".join),
        ),
    },
    optional={
        "nodes": st.integers(1, 100_000),
        "ranks_per_node": st.integers(1, 4096),
        "launcher": st.sampled_from(["native", "torchrun", "deepspeed", "mpirun"]),
        "image": words,
        "workdir": text.filter(bool),
        "env": st.dictionaries(env_names, text, max_size=5),
        "env_from": st.lists(st.builds("{}/{}".format, st.sampled_from(["secret", "configmap"]), names)),
        "resources": some(
            gpus=st.integers(0, 1024),
            gpu_resource=resources,
            cpu=st.builds(Quantity, st.integers(1, 10**15), st.sampled_from(["decimal", "exponent"])),
            memory=amounts,
            shm=amounts,
            extra=st.dictionaries(others, amounts, max_size=2),
        ),
        "network": some(
            rdma=st.sampled_from(["auto", "required", "off"]), annotations=st.dictionaries(keys, text, max_size=3)
        ),
        "volumes": st.lists(volumes, max_size=3, unique_by=lambda volume: volume["path"]),
        "schedule": some(
            queue=names,
            gang=st.sampled_from(["auto", "kueue", "kai", "off"]),
            tolerations=st.lists(
                st.builds(
                    lambda said: {**said, "effect": "NoExecute"},
                    st.fixed_dictionaries(
                        {"key": keys}, optional={"value": values, "toleration_seconds": st.integers(0, 10**9)}
                    ),
                ),
                max_size=2,
            ),
            node_selector=st.dictionaries(keys, values, max_size=2),
            topology=st.builds(lambda level: {"required": level}, keys),
        ),
        "failure": some(
            restarts=st.integers(0, 10**6),
            start_timeout=durations,
            hang_timeout=durations,
            grace=durations,
            deadline=st.one_of(st.none(), durations),
            force_delete=st.booleans(),
            clean=st.sampled_from(["running", "all", "none"]),
            ttl=durations,
        ),
        "engines": some(
            mpijob=some(start=st.sampled_from(["agents", "mpirun"]), manifest=manifests),
            runai=some(project=words, interactive=st.booleans()),
            ray=some(manifest=manifests),
        ),
    },
)


@given(fields)
def test_a_job_that_is_written_and_read_again_is_the_same(values: dict[str, Any]) -> None:
    job = Job(**values)
    written = dump(job)
    assert parse(written) == job
    assert dump(parse(written)) == written


@given(st.sampled_from(AWKWARD), st.sampled_from(AWKWARD))
def test_awkward_text_survives_in_every_place(one: str, other: str) -> None:
    manifest = {one: other, "list": [one, other], "deep": [[one], {other: one}, {"a": [other, {}]}]}
    job = Job(name="a", run=["x", one, other], env={"A": one}, engines={"ray": {"manifest": manifest}})  # type: ignore[arg-type]
    assert parse(dump(job)) == job


def _is_job_or_refused(source: str) -> None:
    started = time.process_time()
    try:
        job = parse(source)
    except SpecError:
        pass
    else:
        assert parse(dump(job)) == job
    assert time.process_time() - started < 1


SIGNS = "\t\n\r \"#%&'*+,-.0123:<>?@[\\]abekNnoUu{|}!_~`\0\x85\u2028\ud800\ufeff"
ALPHABET = [*SIGNS, "kind: Job\n", "name: a\n", "run: x\n", "\n  "]


@given(st.lists(st.sampled_from(ALPHABET)).map("".join))
@example('kind: Job\nname: a\nrun: x\nenv: "\\U00110000"\n')
@example("? ? a")
@example("- !<")
@example('a: {"\\ud800\\udc00": "\\ud800"}')
def test_a_text_of_yaml_signs_is_a_job_or_a_spec_error(source: str) -> None:
    _is_job_or_refused(source)
    _is_job_or_refused("kind: Job\nname: a\nrun: x\n" + source)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_job_or_a_spec_error(source: bytes) -> None:
    _is_job_or_refused(source.decode("utf-8", "surrogateescape"))


def _yaml(value: Any) -> str:
    return json.dumps(value)


@given(st.dictionaries(st.one_of(st.sampled_from(list(Job.model_fields)), text), data, max_size=8))
@example({"[key]": None, "env": {"[key]": [], "list": 1}})
def test_any_structure_is_a_job_or_a_spec_error(values: dict[str, Any]) -> None:
    _is_job_or_refused(_yaml(values))
    _is_job_or_refused(_yaml({"kind": "Job", "name": "a", "run": "x"} | values))


@given(st.sampled_from(["resources", "network", "volumes", "schedule", "failure", "engines", "env", "run"]), data, data)
def test_any_part_is_read_or_refused(part: str, value: Any, inner: Any) -> None:
    model = Job.model_fields[part]
    names = list(getattr(model.annotation, "model_fields", {"a": None}))
    for tried in (value, {names[0]: value, names[-1]: inner}, [value, {"path": inner, "claim": value}]):
        _is_job_or_refused(_yaml({"kind": "Job", "name": "a", "run": "x"} | {part: tried}))
