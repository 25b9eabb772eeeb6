"""Jobs that the engines' tests plan: a classic one, and any that is valid."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hypothesis import strategies as st

from allranks.engines.engine import Plan
from allranks.engines.kubernetes.cluster import Cluster
from allranks.spec.job import Job
from allranks.spec.load import parse

ENGINES = ("mpijob", "trainjob", "pytorchjob", "jobset", "runai")

CLASSIC = """
kind: Job
name: digits
nodes: 3
run: python train.py --epochs 3
image: ghcr.io/acme/train:1
workdir: /workspace
env: {NCCL_DEBUG: INFO}
resources: {gpus: 2, cpu: 8, memory: 32Gi, shm: 16Gi, extra: {rdma/rdma: 1}}
network: {annotations: {k8s.v1.cni.cncf.io/networks: kube-system/roce}}
volumes:
  - {claim: scratch, path: /scratch}
schedule: {namespace: team-a}
"""
"""What people write MPIJobs, PyTorchJobs and Run:ai command lines for."""


def job(text: str = CLASSIC, **fields: Any) -> Job:
    return Job.model_validate({**parse(text).model_dump(exclude_unset=True), **fields})


def plan(engine: str, made: Job, cluster: Cluster | None = None) -> Plan:
    module = import_module(f"allranks.engines.{engine}.plan")
    found: Plan = module.plan(made, cluster or Cluster())
    return found


# Any job

_words = st.text("abcXYZ09._/-", min_size=1, max_size=12).filter(lambda text: text.split() == [text])
_names = st.from_regex(r"[a-z]([-a-z0-9]{0,10}[a-z0-9])?", fullmatch=True)
_texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
_paths = st.lists(_names, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))
_amounts = st.sampled_from(["1", "500m", "8", "1e3"])
_memory = st.sampled_from(["1Gi", "512Mi", "2G"])
_volumes = st.lists(
    st.one_of(
        st.fixed_dictionaries({"claim": _names, "path": _paths, "read_only": st.booleans()}),
        st.fixed_dictionaries({"host": _paths, "path": _paths, "read_only": st.booleans()}),
    ),
    max_size=3,
    unique_by=lambda volume: volume["path"],
)
_tolerations = st.lists(
    st.fixed_dictionaries(
        {"key": _names, "operator": st.just("Exists"), "effect": st.just("NoExecute")},
        optional={"toleration_seconds": st.integers(0, 600)},
    ),
    max_size=2,
)
_schedule = st.fixed_dictionaries(
    {},
    optional={
        "namespace": _names,
        "queue": _names,
        "gang": st.sampled_from(["auto", "kueue", "volcano", "coscheduling", "kai", "off"]),
        "priority": _names,
        "tolerations": _tolerations,
        "node_selector": st.dictionaries(_names, _names, max_size=2),
        "topology": st.one_of(
            st.fixed_dictionaries({"required": _names}), st.fixed_dictionaries({"preferred": _names})
        ),
    },
)
_engines = st.fixed_dictionaries(
    {},
    optional={
        "mpijob": st.fixed_dictionaries(
            {"start": st.sampled_from(["agents", "mpirun"])},
            optional={"implementation": st.sampled_from(["openmpi", "intel", "mpich"])},
        ),
        "trainjob": st.fixed_dictionaries({"runtime": _names}),
        "runai": st.fixed_dictionaries({"project": _names, "interactive": st.booleans()}),
    },
)
anything = st.fixed_dictionaries(
    {"name": _names, "nodes": st.integers(1, 40), "run": st.lists(_texts, min_size=1).filter(lambda argv: argv[0])},
    optional={
        "ranks_per_node": st.integers(1, 8),
        "launcher": st.sampled_from(["native", "torchrun", "deepspeed", "mpirun"]),
        "image": _words,
        "workdir": _paths,
        "env": st.dictionaries(st.sampled_from(["A", "PATH", "NCCL_DEBUG"]), _texts, max_size=2),
        "env_from": st.lists(_names.map("secret/{}".format), max_size=2),
        "resources": st.fixed_dictionaries(
            {},
            optional={
                "gpus": st.integers(0, 8), "gpu_resource": st.sampled_from(["nvidia.com/gpu", "amd.com/gpu"]),
                "cpu": _amounts, "memory": _memory, "shm": _memory,
                "extra": st.dictionaries(st.sampled_from(["rdma/rdma", "ephemeral-storage"]), st.just("2"), max_size=2),
            },
        ),
        "network": st.fixed_dictionaries(
            {"rdma": st.sampled_from(["auto", "required", "off"])},
            optional={"annotations": st.dictionaries(_names, _texts, max_size=2)},
        ),
        "volumes": _volumes,
        "schedule": _schedule,
        "failure": st.fixed_dictionaries(
            {"restarts": st.integers(0, 9), "clean": st.sampled_from(["running", "all", "none"])},
            optional={"ttl": st.just("1h"), "grace": st.just("90s"), "deadline": st.just("24h")},
        ),
        "pod": st.fixed_dictionaries({}, optional={"serviceAccountName": _names, "hostNetwork": st.booleans()}),
        "container": st.fixed_dictionaries({}, optional={"imagePullPolicy": st.just("Always")}),
        "engines": _engines,
    },
)  # fmt: skip
"""Fields of any valid job; values that the API server would refuse are among them, as they are in real specs."""
