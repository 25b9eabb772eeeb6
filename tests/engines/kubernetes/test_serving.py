"""What a service becomes on each engine of Kubernetes, and what it cannot become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allranks import engines
from allranks.engines.engine import CanAnswer, CanServe, Plan
from allranks.engines.kubernetes import delivery, serving
from allranks.engines.kubernetes.replicas import together
from allranks.errors import SpecError
from allranks.node.cause import Cause
from allranks.node.gang import Gang
from allranks.node.status import NodeStatus, RankStatus, Status
from allranks.spec.service import Service

KUBERNETES = ("jobset", "mpijob", "trainjob", "pytorchjob")


def plan(engine: str = "jobset", **fields: Any) -> Plan:
    whole = {"name": "chat", "nodes": 2, "image": "serve:1", "model": "/models/m", **fields}
    found = engines.get(engine)
    assert isinstance(found, CanServe)
    return found.plan_service(Service.model_validate(whole), Path("/somewhere"))


def containers(value: Any) -> list[dict[str, Any]]:
    """Of all templates in a document."""
    if isinstance(value, list):
        return [found for part in value for found in containers(part)]
    if not isinstance(value, dict):
        return []
    return [*value.get("containers", []), *(found for part in value.values() for found in containers(part))]


@pytest.mark.parametrize("engine", KUBERNETES)
def test_all_pods_ask_their_agent_and_one_address_leads_to_node_0(engine: str) -> None:
    made = plan(engine, port=81, ready="/well", api_key={"secret": "chat/key"})
    assert isinstance(engines.get(engine), CanAnswer)
    found = [one for document in made.documents for one in containers(document)]
    assert found
    for container in found:
        command = container["readinessProbe"]["exec"]["command"]
        assert command[2:6] == ["ready", "/allranks/plan.json", "81", "/well"]
        assert ("--from-the-start" in command) == (engine == "pytorchjob")
        source = {"secretKeyRef": {"name": "chat", "key": "key"}}
        assert {"name": "ALLRANKS_API_KEY", "valueFrom": source} in container["env"]
    (lead,) = (one for one in made.documents if one["metadata"]["name"] == "chat-http")
    assert lead["spec"]["selector"][delivery.SERVICE] == "chat"
    assert len(lead["spec"]["selector"]) > 1  # else all pods of the gang would get requests
    assert made.address.startswith("http://chat-http.default:81")


def test_its_agents_know_what_the_image_must_have_and_which_code_is_final() -> None:
    (config,) = (one for one in plan().documents if one["kind"] == "ConfigMap")
    gang = Gang.from_json(json.loads(config["data"][delivery.PLAN]))
    assert (gang.needs[:2], gang.final) == (("allranks", "torch"), (65,))
    assert gang.argv[:3] == ("python3", "-m", "allranks.serving")
    assert "--host=0.0.0.0" in gang.argv


def test_a_server_of_ones_own_needs_nothing_of_ours() -> None:
    (config,) = (one for one in plan(model=None, run="serve me").documents if one["kind"] == "ConfigMap")
    gang = Gang.from_json(json.loads(config["data"][delivery.PLAN]))
    assert (gang.needs, gang.final, gang.argv) == ((), (), ("serve", "me"))


def test_replicas_are_gangs_of_their_own_behind_one_address() -> None:
    made = plan(replicas=3)
    shared, gangs = serving.apart(made)
    assert [document["metadata"]["name"] for document in shared] == ["chat-http"]
    assert [one.name for one in gangs] == ["chat-0", "chat-1", "chat-2"]
    assert [one.documents[-1]["metadata"]["name"] for one in gangs] == ["chat-0", "chat-1", "chat-2"]
    assert all(one.documents[-1]["metadata"]["labels"][delivery.SERVICE] == "chat" for one in gangs)


def test_a_users_own_probe_is_kept() -> None:
    made = plan(container={"readinessProbe": {"exec": None, "tcpSocket": {"port": 8000}}})
    (container,) = containers(made.documents[-1])
    assert container["readinessProbe"]["tcpSocket"] == {"port": 8000}
    assert "exec" not in container["readinessProbe"]


@pytest.mark.parametrize(
    ("engine", "fields", "message"),
    [
        ("jobset", {"host": "127.0.0.1"}, "host: found 127.0.0.1; in a container nobody could reach it"),
        ("jobset", {"model": "./m"}, "model: found ./m; in a container allowed is an absolute path"),
        ("jobset", {"chat_template": "c.jinja"}, "chat_template: found c.jinja; in a container allowed is"),
        ("jobset", {"api_key": {"env": "KEY"}}, "write api_key: {secret: NAME/KEY}"),
        ("jobset", {"image": None}, "image: engine jobset runs containers"),
        ("jobset", {"name": "a" * 39, "replicas": 2}, "longer than 40 characters; shorten it"),
        ("mpijob", {"engines": {"mpijob": {"start": "mpirun"}}}, "engines.mpijob.start: mpirun is for jobs"),
        ("runai", {}, "engine runai serves nothing"),
    ],
)
def test_what_it_cannot_become_is_told_with_the_way_out(engine: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as refused:
        plan(engine, **fields)
    assert message in str(refused.value)


def gang(name: str, phase: str, used: int = 0, **more: Any) -> Status:
    ranks = [RankStatus(0, 0)]
    return Status(name, "jobset", phase, restarts={"used": used, "allowed": 3}, world_size=1, started="2026-01-01",
                  nodes=[NodeStatus(0, f"{name}-0", ranks=ranks)], **more)  # fmt: skip


def test_gangs_are_told_of_as_one_run() -> None:
    cause = Cause(0, "signal", "2026-01-01", "rank 0: killed")
    found = together("chat", [gang("chat-0", "running", 1, causes=[cause]), gang("chat-1", "restarting", 2)])
    assert (found.phase, found.restarts, found.world_size) == ("restarting", {"used": 3, "allowed": 6}, 2)
    assert [(node.node, node.ranks[0].rank) for node in found.nodes] == [(0, 0), (1, 1)]
    assert found.causes[0].message == "chat-0: rank 0: killed"


def test_a_service_is_over_when_all_of_its_gangs_are() -> None:
    failed = gang("chat-0", "failed", exit_code=65, reason="torn", ended="2026-01-02")
    assert together("chat", [failed, gang("chat-1", "running")]).phase == "running"
    found = together("chat", [failed, gang("chat-1", "cancelled", exit_code=143, ended="2026-01-03")])
    assert (found.phase, found.exit_code, found.ended) == ("failed", 65, "2026-01-03")
    assert "chat-0: torn" in found.reason
