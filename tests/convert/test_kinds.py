"""Manifests become specs: what is carried, and what is listed as not carried, with its place."""

from __future__ import annotations

import re

import pytest

from allranks.convert.draft import Lost
from allranks.convert.kinds import CARRY, from_manifest
from allranks.errors import SpecError
from allranks.manifest.field import Field
from allranks.manifest.gang import Manifest
from allranks.manifest.read import read
from allranks.spec.job import Job
from allranks.spec.load import dump, parse
from allranks.spec.tree import Node, Position
from tests.lint import good


def converted(text: str) -> tuple[Job, list[Lost]]:
    contents = read(text, "m.yaml")
    assert contents.unread == []
    root = next(one for one in contents.documents if one["kind"].text in CARRY)
    job, lost = from_manifest(Manifest("m.yaml", root, contents.documents))
    assert parse(dump(job)) == job
    return job, lost


def test_an_mpijob_is_carried_whole() -> None:
    job, lost = converted(good.MPIJOB)
    assert (job.name, job.nodes, job.ranks, job.launcher, job.run) == ("digits", 2, 2, "mpirun", "python train.py")
    assert (job.image, job.env, job.resources.gpus) == ("ghcr.io/acme/train:1", {"NCCL_DEBUG": "INFO"}, 2)
    assert (str(job.resources.shm), {k: int(v) for k, v in job.resources.extra.items()}) == ("16Gi", {"rdma/rdma": 1})
    assert job.network.annotations == {"k8s.v1.cni.cncf.io/networks": "kube-system/roce"}
    assert [(one.claim, one.path, one.read_only) for one in job.volumes] == [("scratch", "/data", True)]
    assert (job.schedule.namespace, len(job.schedule.tolerations)) == ("team-a", 2)
    assert (job.failure.restarts, job.failure.clean) == (2, "running")
    assert [(one.where, one.what.rpartition(".")[2].partition(":")[0]) for one in lost] == [
        ("m.yaml:21:13", "--mca plm_rsh_args -o ServerAliveInterval=2"),
        ("m.yaml:8:3", "launcherCreationPolicy"),
        ("m.yaml:15:7", "restartPolicy"),
        ("m.yaml:25:7", "restartPolicy"),
    ]
    assert job.container == {"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}


@pytest.mark.parametrize(
    ("name", "nodes", "ranks", "launcher"),
    [
        ("MPIJOB", 2, 2, "mpirun"),
        ("DEEPSPEED_MPIJOB", 2, 2, "deepspeed"),
        ("PYTORCHJOB", 4, 2, "torchrun"),
        ("JOBSET", 2, 2, "torchrun"),
        ("TRAINJOB", 2, 2, "torchrun"),
        ("MPI_TRAINJOB", 2, 2, "mpirun"),
        ("JOB", 2, 1, "native"),
    ],
)
def test_every_kind_gives_its_nodes_ranks_and_launcher(name: str, nodes: int, ranks: int, launcher: str) -> None:
    job, lost = converted(good.ALL[name])
    assert (job.name, job.nodes, job.ranks, job.launcher, job.argv) == (
        "digits", nodes, ranks, launcher, ("python", "train.py")
    )  # fmt: skip
    assert all(one.where.startswith("m.yaml:") and one.why for one in lost)


def test_the_first_version_of_the_mpijob_is_read_too() -> None:
    text = good.MPIJOB.replace("v2beta1", "v1").replace(
        "  runPolicy:\n    cleanPodPolicy: Running\n    backoffLimit: 2\n", "  cleanPodPolicy: All\n"
    )
    job, _ = converted(text)
    assert (job.nodes, job.failure.clean) == (2, "all")


def test_a_launcher_that_is_a_worker_is_a_node_more() -> None:
    job, _ = converted(
        good.MPIJOB.replace("  slotsPerWorker: 2\n", "  slotsPerWorker: 2\n  runLauncherAsWorker: true\n").replace(
            '"4"', '"6"'
        )
    )
    assert (job.nodes, job.ranks) == (3, 2)


def test_without_its_runtime_a_trainjob_names_it() -> None:
    text = good.MPI_TRAINJOB.split("---\n")[1]
    job, _ = converted(text)
    assert (job.engines.trainjob.runtime, job.nodes, job.launcher) == ("mpi", 2, "mpirun")


def test_what_only_one_engine_understands_is_listed_with_the_way_out() -> None:
    text = good.JOBSET.replace("            tolerations:", "            subdomain: robot\n            tolerations:")
    _, lost = converted(text)
    found = next(one for one in lost if "subdomain" in one.what)
    assert "engines.jobset.manifest" in found.why
    assert text.splitlines()[int(found.where.split(":")[1]) - 1].strip() == "subdomain: robot"


def test_what_a_spec_has_no_words_for_is_carried_as_it_stands() -> None:
    own = """
            imagePullSecrets: [{name: hub}]
            tolerations:"""
    text = good.JOBSET.replace("\n            tolerations:", own)
    text = text.replace(
        "{name: NCCL_DEBUG, value: INFO}", "{name: KEY, valueFrom: {secretKeyRef: {name: hub, key: k}}}"
    )
    code = ["{name: code, mountPath: /code, subPath: a}", "{name: code, mountPath: /lib, subPath: b}"]
    text = text.replace("{name: data, mountPath: /data, readOnly: true}", "\n              - ".join(code))
    text = text.replace("persistentVolumeClaim: {claimName: scratch}", "configMap: {name: code}")
    text = text.replace("name: data", "name: code")
    job, lost = converted(text)
    assert not [one for one in lost if "env" in one.what or "volume" in one.what]
    assert job.pod == {
        "imagePullSecrets": [{"name": "hub"}],
        "volumes": [{"name": "code", "configMap": {"name": "code"}}],
    }
    assert job.container["env"] == [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "k"}}}]
    assert [one["subPath"] for one in job.container["volumeMounts"]] == ["a", "b"]


def test_a_value_that_does_not_fit_a_spec_is_listed_and_the_rest_is_carried() -> None:
    text = good.JOBSET.replace("memory: 32Gi", "memory: 1m").replace(
        "name: NCCL_DEBUG, value: INFO", "name: a-b, value: x"
    )
    job, lost = converted(text)
    assert (job.resources.memory, job.env, job.nodes) == (None, {}, 2)
    told = " ".join(map(str, lost))
    assert "allowed is 1Mi or more" in told
    assert "a variable's name has letters, digits and _" in told


def test_a_command_that_cannot_be_taken_apart_is_kept_whole_and_said() -> None:
    job, lost = converted(good.PYTORCHJOB.replace("torchrun --nnodes", "./prepare.sh; torchrun --nnodes"))
    assert (job.launcher, job.argv[:2]) == ("once", ("bash", "-c"))
    why = next(one.why for one in lost if one.what == "the command")
    assert why.startswith("kept whole, as one process a node, because of './prepare.sh' before torchrun")


def test_pods_that_differ_are_told() -> None:
    text = good.PYTORCHJOB.replace(
        "      template: *pod\n", "      template: {spec: {containers: [{name: pytorch, image: other}]}}\n"
    )
    _, lost = converted(text)
    assert [one.why for one in lost if one.what.endswith("image: other")] == ["all nodes of a gang are alike"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    Launcher:\n", "    Laucher:\n", "m.yaml:6:1: no mpiReplicaSpecs.Launcher"),
        ("command: [mpirun, --allow", "was: [mpirun, --allow", ""),
        ("command:", "was:", "no command here, so the image's own would run"),
    ],
)  # fmt: skip
def test_a_manifest_without_anything_to_run_is_refused_with_its_place(old: str, new: str, said: str) -> None:
    text = good.MPIJOB.replace(old, new)
    if said.startswith("no command"):
        text = text.replace("            args:", "            more:")
    if not said:
        job, lost = converted(text)
        assert job.argv[0] == "-x"
        assert "the image's own ENTRYPOINT takes these arguments" in " ".join(one.why for one in lost)
        return
    with pytest.raises(SpecError, match=said):
        converted(text)


def gang_of(text: str, documents: list[Field] | None = None) -> list[Field]:
    return [one for one in documents or read(text, "m.yaml").documents if one["kind"].text in CARRY]


# What no spec holds even when it is right: names by which one part of a manifest finds another.
LINKS = re.compile(
    r"(containers|volumes|replicatedJobs)\[\d\]\.name$|completionMode$|emptyDir\.medium$|^metadata\.(name|labels)"
    r"|(mpiImplementation|runLauncherAsNode|ancestor-step|apiVersion|^kind)$"
)


def leaves(at: Field) -> list[Field]:
    """All scalars that say something of the gang."""
    return [one for one in at.walk() if one.is_scalar and not LINKS.search(one.path)]


@pytest.mark.parametrize("name", [name for name, text in good.ALL.items() if gang_of(text)])
def test_a_value_of_a_wrong_type_is_never_dropped_in_silence(name: str) -> None:
    silent = []
    documents = read(good.ALL[name], "m.yaml").documents
    manifest = Manifest("m.yaml", gang_of(good.ALL[name], documents)[0], documents)
    odd = Node(Position(999, 1), "y", "y")
    for leaf in [leaf for document in documents for leaf in leaves(document)]:
        for wrong in ({"x": odd}, [odd]):
            if not any(tells_of(one, leaf) for one in lost_with(leaf, wrong, manifest)):
                silent.append(f"{leaf.path}: {type(wrong).__name__}")
    assert silent == []


def lost_with(leaf: Field, wrong: object, manifest: Manifest) -> list[Lost]:
    """What is not carried when this stands in a scalar's place; a refusal is told too."""
    node = leaf.node
    assert node is not None
    kept = node.value
    object.__setattr__(node, "value", wrong)
    try:
        job, lost = from_manifest(Manifest("m.yaml", manifest.root, manifest.beside))
        as_it_stands = re.search(r"[:-] y$", dump(job.model_copy(update={"env": {}})), re.M)
        return [Lost("m.yaml:999:1", "in the spec as it stands", "")] if as_it_stands else lost
    except SpecError as error:
        return [Lost("m.yaml:999:1", str(error), "")]
    finally:
        object.__setattr__(node, "value", kept)


def tells_of(lost: Lost, leaf: Field) -> bool:
    """Whether this is said of the value, of what was put into it, or of what it is a part of."""
    line = int(lost.where.split(":")[1]) if ":" in lost.where else 0
    of_volume = ".volumes[" in leaf.path and lost.what.startswith(("the volume at ", "/dev/shm"))
    return line in (leaf.position.line, 999) or leaf.path.startswith(lost.what) or of_volume


def test_what_is_told_of_a_wrong_type_says_what_is_allowed() -> None:
    text = good.PYTORCHJOB.replace('nprocPerNode: "2"', "nprocPerNode: auto").replace(
        "name: digits", "name: Digits_5", 1
    )
    job, lost = converted(text)
    told = {one.what: one.why for one in lost}
    assert told["spec.nprocPerNode: auto"] == "allowed is a whole number, 0 or more"
    assert told["metadata.name: Digits_5"].endswith("it is named digits-5")
    assert (job.name, job.nodes) == ("digits-5", 4)
