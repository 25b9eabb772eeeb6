from __future__ import annotations

import io
import os
import re
import time
from pathlib import Path

import pytest

from allranks.errors import SpecError
from allranks.spec.load import LARGEST, dump, load, parse, parse_job
from allranks.spec.units import Quantity

HEAD = "kind: Job\nname: a\nrun: python train.py\n"

FULL = """\
kind: Job
name: digits
nodes: 2
ranks_per_node: 2
run: python train.py --epochs 3
launcher: torchrun
image: ghcr.io/acme/train:1
workdir: /workspace
env:
  NCCL_DEBUG: INFO
env_from: [secret/hub-token]
resources:
  gpus: 2
  cpu: 8
  memory: 32Gi
  shm: 16Gi
  extra:
    rdma/rdma: 1
network:
  rdma: required
  annotations:
    k8s.v1.cni.cncf.io/networks: kube-system/roce
volumes:
  - claim: scratch
    path: /scratch
  - host: /data
    path: /data
    read_only: true
schedule:
  namespace: team-a
  queue: research
  priority: high
  tolerations:
    - key: gpu
      operator: Exists
  node_selector:
    zone: '1'
  topology:
    required: rack
failure:
  restarts: 5
  deadline: 24h
  ttl: 1h
engines:
  mpijob:
    start: mpirun
    manifest:
      spec:
        - a: 1
          b: [x, 'y: z']
        - null
        - {}
  trainjob:
    runtime: torch
  runai:
    project: team-a
"""


def problems(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse(text)
    return str(caught.value).splitlines()


def test_the_whole_spec_is_read_and_written_back_as_it_was() -> None:
    assert dump(parse(FULL)) == FULL


def test_defaults_are_left_out_of_what_is_written() -> None:
    assert dump(parse(HEAD + "nodes: 1\nlauncher: native\nfailure: {restarts: 3, grace: 30s}\n")) == HEAD


def test_ranks_follow_the_gpus_unless_they_are_given_or_once_says_one() -> None:
    assert parse_job(HEAD).ranks == 1
    assert parse_job(HEAD + "nodes: 3\nresources: {gpus: 8}").world_size == 24
    assert parse_job(HEAD + "resources: {gpus: 8}\nranks_per_node: 4").ranks == 4
    assert parse_job(HEAD + "resources: {gpus: 8}\nlauncher: once").ranks == 1


def test_a_bare_value_where_text_belongs_keeps_its_text_exactly() -> None:
    job = parse_job(HEAD + "env: {THREADS: 4, VERSION: 1.10, DEBUG: true, BIG: 007, SCI: 1e3, COUNTRY: no, EMPTY: ''}")
    assert job.env == {
        "THREADS": "4",
        "VERSION": "1.10",
        "DEBUG": "true",
        "BIG": "007",
        "SCI": "1e3",
        "COUNTRY": "no",
        "EMPTY": "",
    }
    job = parse_job("kind: Job\nname: a\nrun: [python, x.py, 3, 1.0, yes]")
    assert job.argv == ("python", "x.py", "3", "1.0", "yes")
    assert parse(HEAD + "resources: {cpu: 0.1}").resources.cpu == Quantity.parse("100m")


@pytest.mark.parametrize(
    ("run", "argv"),
    [
        ("python train.py --name 'a b'", ("python", "train.py", "--name", "a b")),
        ("python -c 'a#b'", ("python", "-c", "a#b")),
        ('>\n  python -c "a # b"\n', ("python", "-c", "a # b")),
        ("[python, 'a b']", ("python", "a b")),
        ("|\n  python train.py \\\n    --epochs 3\n", ("python", "train.py", "--epochs", "3")),
        (">\n  python train.py\n  --epochs 3\n", ("python", "train.py", "--epochs", "3")),
        ("|\n  python -c 'a\n  b'\n", ("python", "-c", "a\nb")),
    ],
)
def test_run_is_split_as_a_shell_would(run: str, argv: tuple[str, ...]) -> None:
    assert parse_job(f"kind: Job\nname: a\nrun: {run}").argv == argv


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("node: 2", "4:1: unknown field 'node'; did you mean 'nodes'?"),
        ("maxRestarts: 2", "4:1: unknown field 'maxRestarts'; did you mean 'failure.restarts'?"),
        ("gpus: 2", "4:1: unknown field 'gpus'; did you mean 'resources.gpus'?"),
        ("resources: {image: a}", "4:13: unknown field 'image' in resources; did you mean 'image' at the top level?"),
        ("nproc-per-node: 2", "4:1: unknown field 'nproc-per-node'; did you mean 'ranks_per_node'?"),
        (
            "failure: {xyz: 1}",
            "4:11: unknown field 'xyz' in failure; allowed: restarts, final, start_timeout, hang_timeout, grace, "
            "deadline, force_delete, clean, ttl",
        ),
        ("engines: {mpjob: {}}", "4:11: unknown field 'mpjob' in engines; did you mean 'mpijob'?"),
        ("nodes: 0", "4:8: nodes: found 0; allowed is a whole number, 1 or more"),
        ("nodes: 100001", "4:8: nodes: found 100001; allowed is a whole number, 100000 or less"),
        ("nodes: two", "4:8: nodes: found 'two'; allowed is a whole number"),
        ("nodes: '2'", "4:8: nodes: found '2'; allowed is a whole number"),
        ("nodes: 2.0", "4:8: nodes: found 2.0; allowed is a whole number"),
        ("nodes: true", "4:8: nodes: found true; allowed is a whole number"),
        ("nodes:", "4:7: nodes: found nothing; allowed is a whole number"),
        ("nodes: [2]", "4:8: nodes: found a list; allowed is a whole number"),
        (
            "launcher: torchrn",
            "4:11: launcher: found 'torchrn'; allowed: native, torchrun, deepspeed, mpirun, once; "
            "did you mean 'torchrun'?",
        ),
        (
            "launcher: once\nranks_per_node: 2",
            "4:11: launcher: found 'once'; once starts one process a node, but ranks_per_node is 2; leave that out",
        ),
        ("env: [A]", "4:6: env: found a list; allowed is a mapping, lines of 'name: value'"),
        ("env: {list: []}", "4:13: env.list: found a list; allowed is text"),
        ("env: {A: }", "4:9: env.A: found nothing; allowed is text"),
        ("env: {A: [1]}", "4:10: env.A: found a list; allowed is text"),
        (
            "env: {1A: x}",
            "4:7: env.1A: found '1A'; a variable's name has letters, digits and _, and does not start with a digit",
        ),
        ("env: {RANK: 1}", "4:7: env.RANK: found 'RANK'; allranks sets this one for every rank; leave it out"),
        (
            "env: {ALLRANKS_RUN: x}",
            "4:7: env.ALLRANKS_RUN: found 'ALLRANKS_RUN'; allranks sets this one for every rank; leave it out",
        ),
        ('env: {A: "\\0"}', "4:10: env.A: found '\\x00'; text has no NUL character"),
        ('env: {A: "\\uD800"}', "4:10: found half of a surrogate pair; no text holds that"),
        ("env_from: [hub-token]", "4:12: env_from[0]: found 'hub-token'; allowed is secret/NAME or configmap/NAME"),
        ("failure: {grace: 10}", "4:18: failure.grace: found 10; a duration needs its unit: write 10s"),
        (
            "failure: {grace: soon}",
            "4:18: failure.grace: found 'soon'; allowed is a duration such as 90s, 10m, 1h30m, 24h or 500ms",
        ),
        ("failure: {deadline: 0s}", "4:21: failure.deadline: found '0s'; allowed is more than 0s"),
        ("failure: {restarts: -1}", "4:21: failure.restarts: found -1; allowed is a whole number, 0 or more"),
        (
            "resources: {memory: 512m}",
            "4:21: resources.memory: found '512m'; that is 0.512 bytes; allowed is 1Mi or more, such as 512Mi or 16Gi",
        ),
        (
            "resources: {cpu: lots}",
            "4:18: resources.cpu: found 'lots'; allowed is a quantity such as 8, 500m, 16Gi or 1e3",
        ),
        ("resources: {extra: {a/b: 0.5}}", "4:26: resources.extra.a/b: found '0.5'; allowed is a whole number"),
        (
            "resources: {extra: {cpu: 2}}",
            "4:21: resources.extra.cpu: found 'cpu'; allowed is a resource's name, DOMAIN/NAME such as rdma/hca, or "
            "hugepages-2Mi",
        ),
        (
            "resources: {memory: 8Gi, extra: {hugepages-2Mi: 3Mi}}",
            "4:12: resources: found a mapping; hugepages-2Mi is memory in whole pages, such as "
            "hugepages-2Mi: 512Mi; found 3Mi",
        ),
        (
            "resources: {extra: {hugepages-2Mi: 4Mi}}",
            "4:12: resources: found a mapping; hugepages-2Mi needs 'cpu' or 'memory' beside it",
        ),
        (
            "resources: {gpus: 1, extra: {nvidia.com/gpu: 1}}",
            "4:12: resources: found a mapping; gpus counts nvidia.com/gpu already; leave it out of 'extra'",
        ),
        (
            "schedule: {namespace: Team_A}",
            "4:23: schedule.namespace: found 'Team_A'; allowed is a namespace's name: a-z, 0-9 and -, at most 63, "
            "first and last a letter or digit",
        ),
        (
            "schedule: {node_selector: {disk: a b}}",
            "4:34: schedule.node_selector.disk: found 'a b'; allowed is a label's value: letters, digits, -, _ and ., "
            "at most 63, or nothing",
        ),
        (
            "schedule: {tolerations: [{key: a, toleration_seconds: 3}]}",
            "4:26: schedule.tolerations[0]: found a mapping; toleration_seconds is for effect: NoExecute alone",
        ),
        (
            "schedule: {tolerations: [{operator: Equal}]}",
            "4:26: schedule.tolerations[0]: found a mapping; a toleration of every key has operator: Exists",
        ),
        (
            "volumes: [{claim: a, path: /allranks}]",
            "4:28: volumes[0].path: found '/allranks'; allranks has its own files there; allowed is a path other than "
            "/allranks and /run/allranks",
        ),
        (
            "volumes: [{host: /a/../b, path: /a}]",
            "4:18: volumes[0].host: found '/a/../b'; allowed is a path without '..', which Kubernetes refuses",
        ),
        ("volumes: [{claim: a}]", "4:11: missing field 'path' in volumes[0]; write for example 'path: /data'"),
        (
            "volumes: [{path: /a}]",
            "4:11: volumes[0]: found a mapping; a volume has either 'claim' or 'host'",
        ),
        (
            "volumes: [{claim: a, path: /a}, {claim: b, path: /a}]",
            "4:10: volumes: found a list; two volumes have the path '/a'",
        ),
        ("volumes: [{claim: a, path: b}]", "4:28: volumes[0].path: found 'b'; allowed is an absolute path"),
        (
            "engines: {ray: {manifest: {a: .nan}}}",
            "4:27: engines.ray.manifest: found a mapping; a manifest holds no inf, nan or lone surrogate",
        ),
    ],
)
def test_a_field_that_does_not_fit_says_what_was_found_and_what_is_allowed(line: str, message: str) -> None:
    assert problems(HEAD + line) == [f"job.yaml:{message}"]


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("''", "found ''; allowed is the command of every rank, such as python train.py"),
        ("[]", "found a list; allowed is the command of every rank, such as python train.py"),
        ('"a \'b"', 'found "a \'b"; no closing quotation'),
        ("{a: b}", "found a mapping; allowed is a command as text or as a list of words"),
        (
            "a && b",
            "found 'a && b'; no shell reads this, so '&&' means nothing; write the list [sh, -c, '...'] for a shell",
        ),
        ("A=1 b", "found 'A=1 b'; no shell reads this; put 'A=1' into env"),
        (
            "|\n  a\n  b\n",
            "found 'a\\nb\\n'; no shell reads this, so it is one line; write the list [sh, -c, '...'] for a shell",
        ),
    ],
)
def test_a_run_that_is_no_command_says_why(run: str, message: str) -> None:
    assert problems(f"kind: Job\nname: a\nrun: {run}") == [f"job.yaml:3:6: run: {message}"]


@pytest.mark.parametrize("name", ["A", "1a", "a-", "-a", "a_b", "a.b", "''", "\u00e4"])
def test_a_name_that_is_no_dns_label_is_refused(name: str) -> None:
    (problem,) = problems(f"kind: Job\nname: {name}\nrun: x")
    assert problem.endswith("allowed are a-z, 0-9 and '-', first a letter, last no '-'")


def test_a_name_of_forty_characters_is_the_longest() -> None:
    assert parse(f"kind: Job\nname: {'a' * 40}\nrun: x").name == "a" * 40
    (problem,) = problems(f"kind: Job\nname: {'a' * 41}\nrun: x")
    assert problem.endswith("that is 41 characters; allowed are 40")


def test_every_problem_of_a_file_is_told_at_once_in_the_order_of_the_file() -> None:
    text = "nodes: 0\nrunn: x\nnodes: 2\nfailure:\n  grace: 10\n  graze: 10s\n"
    assert problems(text) == [
        "job.yaml:1:1: missing field 'name'; write for example 'name: digits'",
        "job.yaml:1:1: missing field 'kind'; write 'kind: Job' or 'kind: Service'",
        "job.yaml:1:8: nodes: found 0; allowed is a whole number, 1 or more",
        "job.yaml:2:1: unknown field 'runn'; did you mean 'run'?",
        "job.yaml:3:1: 'nodes' is given twice, first in line 1",
        "job.yaml:5:10: failure.grace: found 10; a duration needs its unit: write 10s",
        "job.yaml:6:3: unknown field 'graze' in failure; did you mean 'grace'?",
    ]


def test_a_duplicate_key_is_an_error_with_both_lines() -> None:
    assert problems(HEAD + "env:\n  A: 1\n  A: 2\n") == ["job.yaml:6:3: 'A' is given twice, first in line 5"]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("job", "kind: found 'job'; allowed: Job, Service; did you mean 'Job'?"),
        ("MPIJob", "kind: found 'MPIJob'; allowed: Job, Service; did you mean 'Job'?"),
        ("Pod", "kind: found 'Pod'; allowed: Job, Service"),
        ("[Job]", "kind: found a list; allowed: Job, Service"),
    ],
)
def test_a_kind_that_is_not_served_is_told_what_is(kind: str, message: str) -> None:
    assert problems(f"kind: {kind}\nname: a\nrun: x\n") == [f"job.yaml:1:7: {message}"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1:1: the file is empty; 'allranks init' writes a starter"),
        ("# only this\n", "1:1: the file is empty; 'allranks init' writes a starter"),
        ("---\n", "2:1: the file is empty; 'allranks init' writes a starter"),
        ("- a\n", "1:1: found a list; a spec is a mapping, lines of 'name: value'"),
        ("hello\n", "1:1: found text; a spec is a mapping, lines of 'name: value'"),
        (
            "kind: MPIJob\napiVersion: kubeflow.org/v2beta1\n",
            "2:1: found apiVersion, so this is a manifest and no spec; "
            "what holds a gang becomes one by: allranks convert FILE > job.yaml",
        ),
        (HEAD + "---\n" + HEAD, "4:1: a second document starts here; a file holds one"),
        (HEAD + "env:\n\tA: 1\n", "5:1: found a tab; YAML is indented with spaces only"),
        (HEAD + "env: &x {}\n", "4:6: found the anchor '&x'; a spec has none: write the value out"),
        (HEAD + "env: *x\n", "4:6: found the alias '*x'; a spec has none: write the value out"),
        (HEAD + "env:\n  <<: {A: 1}\n", "5:3: found the merge key '<<'; a spec has none: write the values out"),
        (
            HEAD + "env: !!python/object:os.system x\n",
            "4:6: found the tag 'tag:yaml.org,2002:python/object:os.system'; a spec has none: quote what must be text",
        ),
        ("%YAML 1.1\n---\n" + HEAD, "1:1: a line cannot begin with '%'; a spec has no YAML directives"),
        (HEAD + "env: 'a\n", "4:6: this quote is never closed"),
        (HEAD + "env: {A: 1 B: 2}\n", "4:13: expected ',' or the closing bracket here"),
        (HEAD + "env: [a\nnodes: 2\n", "5:6: expected ',' or the closing bracket here"),
        (HEAD + "env: {A: 1\n", "5:1: the file ends inside '[' or '{'; close it"),
        (HEAD + "env: [\n", "5:1: the file ends inside '[' or '{'; close it"),
        (HEAD + "workdir: a: b\n", "4:11: a ':' is not allowed here; quote text that holds ': '"),
        (HEAD + "workdir: @a\n", "4:10: text cannot begin with this character; quote it"),
        (HEAD + "nodes\n", "5:1: expected 'name: value' here; the ':' is missing"),
        (HEAD + "? [a]\n: b\n", "4:3: a field's name is text, not a list or mapping"),
        (
            HEAD + "env: {A: a\0b}\n",
            "4:11: found the character U+0000; write it in double quotes as an escape, or remove it",
        ),
        (HEAD + 'env: {A: "\\UFFFFFFFF"}\n', "4:7: this is not YAML: Python int too large to convert to C int"),
        (HEAD + f"env: {'[' * 40}\n", "4:38: nested too deep; a spec has at most 32 levels"),
        ("- a\n" * 10_001, "10000:3: too many values; a spec has at most 10,000"),
    ],
    ids=lambda value: value[:40] if ":" in value[:4] else "text",
)
def test_a_text_that_is_no_spec_says_where_and_why(text: str, message: str) -> None:
    assert problems(text) == [f"job.yaml:{message}"]


def test_a_billion_laughs_cost_nothing() -> None:
    laughs = 'a: &a ["lol"]\n' + "".join(
        f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    started = time.process_time()
    assert problems(laughs) == ["job.yaml:1:4: found the anchor '&a'; a spec has none: write the value out"]
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        "{" * 200_000,
        "- " * 100_000,
        "!" * 250_000,
        "&" + "a" * 250_000,
        "a: '" + "b " * 100_000,
        "%A b\n" * 100_000,
        "a: |\n" + "  x\n" * 100_000,
        "".join(f"k{i}: 1\n" for i in range(50_000)),
    ],
    ids=["brackets", "braces", "dashes", "tag", "anchor", "quote", "directives", "block", "fields"],
)
def test_a_hostile_text_is_refused_in_seconds(text: str) -> None:
    started = time.process_time()
    problems(text)
    assert time.process_time() - started < 5


def test_of_very_many_problems_the_first_are_told() -> None:
    told = problems("".join(f"k{number}: 1\n" for number in range(5_000)))
    assert len(told) == 51
    assert told[-1] == "... and more"


def test_line_ends_of_windows_and_a_byte_order_mark_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + FULL.replace("\n", "\r\n").encode())
    assert load(path) == parse(FULL)


def failure(path: Path | str) -> str:
    with pytest.raises(SpecError) as caught:
        load(path)
    assert caught.value.exit_code == 65
    return str(caught.value)


def test_standard_input_is_read_for_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"kind: Job\nnode: 1")))
    assert failure("-").startswith("<stdin>:1:1: missing field 'name'")


def test_a_missing_file_is_told_the_nearest_one_beside_it(tmp_path: Path) -> None:
    assert failure(tmp_path / "job.yaml") == f"{tmp_path}/job.yaml: no such file; 'allranks init' writes a starter"
    (tmp_path / "job.yml").touch()
    assert failure(tmp_path / "job.yaml") == f"{tmp_path}/job.yaml: no such file; did you mean '{tmp_path}/job.yml'?"


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    assert failure(tmp_path) == f"{tmp_path}: this is a directory; name the file in it"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_says_so(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.touch(mode=0o000)
    assert failure(path) == f"{path}: permission denied; you may not read this file"


def test_permission_denied_is_told_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("allranks.spec.load._bytes", refuse)
    assert failure("job.yaml") == "job.yaml: permission denied; you may not read this file"


def test_a_path_with_a_nul_is_refused() -> None:
    assert failure("a\0b").endswith(": embedded null byte")


def test_text_that_is_not_utf_8_says_in_which_line(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"kind: Job\nname: \xff\n")
    assert failure(path) == f"{path}:2: this is not UTF-8 text; save the file as UTF-8"


def test_a_file_over_one_mebibyte_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"[" * (10 * LARGEST))
    started = time.process_time()
    assert failure(path) == f"{path}: the file is larger than 1 MiB; a spec is a page or two"
    assert time.process_time() - started < 1


def test_an_endless_file_is_refused() -> None:
    assert re.fullmatch("/dev/zero: the file is larger than 1 MiB.*", failure("/dev/zero"))
