"""What the engine ray makes of a service: a Serve config and a RayService, as a person would read them.

To write the golden files anew: GOLDEN_FILES=write pytest tests/engines/ray/test_plan.py
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from allranks import __version__
from allranks.engines import get
from allranks.engines.engine import CanCheck, CanLog, CanServe, CanTail, Plan
from allranks.engines.ray.plan import plan_service
from allranks.errors import SpecError
from allranks.spec import write
from allranks.spec.load import parse, parse_job
from allranks.spec.service import Service

GOLDEN = Path(__file__).parent / "golden"
CLUSTER = "engines: {ray: {address: 'head:6379'}}\n"
BIG = """
kind: Service
name: chat
nodes: 2
model: /models/llama-70b
image: ghcr.io/acme/serve:1
replicas: 2
resources: {gpus: 8, cpu: 32, memory: 256Gi, shm: 16Gi}
volumes: [{claim: models, path: /models, read_only: true}]
env: {NCCL_DEBUG: INFO}
schedule: {namespace: team-a}
"""
RAY_SERVICE = "engines: {ray: {kuberay: true, redis: 'redis:6379', redis_password: redis/password}}\n"
SHAPES = {
    "serve-config": BIG + "api_key: {env: CHAT_KEY}\n" + CLUSTER,
    "rayservice": BIG + "api_key: {secret: chat/key}\n" + RAY_SERVICE,
}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def planned(text: str) -> Plan:
    service = parse(text)
    assert isinstance(service, Service)
    return plan_service(service, Path("/"))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_service_becomes_what_a_person_would_have_written(shape: str) -> None:
    made = planned(SHAPES[shape])
    text = "".join(f"# note: {note}\n" for note in made.notes) + write.documents(made.documents)
    text = text.replace(f"version: {__version__}", "version: N")
    path = GOLDEN / f"{shape}.yaml"
    if os.environ.get("GOLDEN_FILES") == "write":
        path.write_text(text)
    assert text == path.read_text()


def test_what_is_printed_can_be_deployed() -> None:
    schema = pytest.importorskip("ray.serve.schema")
    (document,) = planned(SHAPES["serve-config"]).documents
    schema.ServeDeploySchema.model_validate(document)
    (service,) = planned(SHAPES["rayservice"]).documents
    inner = YAML(typ="safe", pure=True).load(service["spec"]["serveConfigV2"])
    schema.ServeDeploySchema.model_validate(inner)
    assert inner["applications"][0]["args"]["hosts"] == 5  # Serve's HTTP is on every pod, the head's too


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("run: vllm serve x\n" + CLUSTER, r"engines.ray.port: the command of 'run' listens on port 8000 itself"),
        (
            "run: a\nreplicas: 2\nengines: {ray: {port: 9}}\n",
            r"replicas: found 2; the command of 'run' listens on port",
        ),
        ("run: a\nlauncher: mpirun\nengines: {ray: {address: a, port: 9}}\n", "launcher mpirun: engine ray does not"),
        (
            "run: a\nnodes: 2\nengines: {ray: {strategy: STRICT_SPREAD, port: 9}}\n",
            "engines.ray.strategy: found STRICT_SPREAD, with 2 nodes, and all are on this machine",
        ),
        (
            "run: a\nengines: {ray: {port: 9, manifest: {applications: null}}}\n",
            "engines.ray.manifest: applications cannot be taken away",
        ),
        (
            "run: a\nengines: {ray: {port: 9, manifest: {applications: [{name: chat, args: {door: 3}}]}}}\n",
            "engines.ray.manifest: applications.0.args.door cannot be taken away, or be another kind of thing",
        ),
        (
            "run: a\nengines: {ray: {port: 9, manifest: {applications: [{name: other}]}}}\n",
            "engines.ray.manifest: applications cannot be taken away",
        ),
        ("model: /m\nimage: a\napi_key: {env: A}\nengines: {ray: {kuberay: true}}\n", "set api_key.secret: NAME/KEY"),
        ("model: /m\napi_key: {secret: a/b}\n" + CLUSTER, "api_key.secret: only a RayService has Secrets"),
        ("model: /m\nengines: {ray: {kuberay: true}}\n", "image: engine ray runs containers"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(fields: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        planned(f"kind: Service\nname: chat\n{fields}")


def test_what_a_manifest_adds_is_in_the_config() -> None:
    patch = "{http_options: {root_path: /a}, applications: [{name: chat, runtime_env: {env_vars: {A: b}}}]}"
    (document,) = planned(
        f"kind: Service\nname: chat\nrun: a\nengines: {{ray: {{port: 9, manifest: {patch}}}}}\n"
    ).documents
    assert document["http_options"] == {"host": "127.0.0.1", "port": 9, "root_path": "/a"}
    assert document["applications"][0]["runtime_env"] == {"env_vars": {"A": "b"}}


def test_rays_word_for_a_cluster_of_ones_own_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    (document,) = planned("kind: Service\nname: chat\nrun: a\nengines: {ray: {port: 9}}\n").documents
    assert document["proxy_location"] == "HeadOnly"


def test_what_plain_ray_does_not_honour_is_noted() -> None:
    notes = planned(SHAPES["serve-config"]).notes
    assert any(note.startswith("volumes: not used by engine ray: ") for note in notes)
    assert not [note for note in planned(SHAPES["rayservice"]).notes if "not used" in note]


def test_the_engine_serves_logs_and_checks_and_sends_jobs_elsewhere() -> None:
    engine: Any = get("ray")
    for ability in (CanServe, CanLog, CanTail, CanCheck):
        assert isinstance(engine, ability)
    with pytest.raises(SpecError, match="is a kind: Job; engine ray runs a kind: Service"):
        engine.plan(parse_job("kind: Job\nname: a\nrun: b\n"), Path("/"))
