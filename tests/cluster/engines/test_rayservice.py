"""A RayService of ours on the real KubeRay: two pods, one rank in each, served, told of and ended by allranks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cluster.engines.conftest import Space
from tests.cluster.errors import ClusterError
from tests.cluster.images.kinds import BASE
from tests.cluster.layout import CHECKOUT
from tests.cluster.namespace import Namespace
from tests.serving.models import save, save_tokenizer

pytestmark = [pytest.mark.timeout(900), pytest.mark.torch, pytest.mark.long]
ASK = """
import json, urllib.request as u
asked = json.dumps({"prompt": "The for", "max_tokens": 5, "temperature": 0}).encode()
request = u.Request("http://chat-serve-svc:8000/generate", asked, {"content-type": "application/json"})
print(u.urlopen(request, timeout=20).read().decode())
"""


def test_it_is_served_told_of_and_ended_as_on_any_engine(space: Space, namespace: Namespace, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    save_tokenizer(save(tmp_path / "llama"))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    code = f"/code:/opt/torch/lib/python{version}/site-packages"  # the image has Ray, and the test's torch beside it
    volumes = [
        {"host": f"{CHECKOUT}/src", "path": "/code", "read_only": True},
        {"host": str(tmp_path / "llama"), "path": "/model", "read_only": True},
    ]
    spec = tmp_path / "chat.yaml"
    spec.write_text(
        json.dumps({
            "kind": "Service", "name": "chat", "nodes": 2, "model": "/model", "image": BASE, "volumes": volumes,
            "env": {"PYTHONPATH": code}, "resources": {"cpu": "200m", "memory": "2Gi"},
            "schedule": {"namespace": space.name}, "engines": {"ray": {"kuberay": True}},
        })
    )  # fmt: skip
    planned = space.allranks("plan", str(spec), "--engine", "ray", "--check", "-o", "yaml")
    assert planned.returncode == 0, planned.stderr
    assert "checked: the cluster would take RayService chat" in planned.stderr
    served = space.allranks("serve", str(spec), "--engine", "ray", "--detach", timeout=600)
    assert served.returncode == 0, served.stderr
    assert served.stdout.startswith(f"http://chat-serve-svc.{space.name}:8000")
    assert any(said in served.stderr for said in ("pods there; chat-", "is initializing")), served.stderr
    said = namespace.wait("an answer", lambda: answer(namespace), 60)
    assert json.loads(said)["usage"]["completion_tokens"] == 5
    pods = namespace.list("pods", "ray.io/node-type=worker")
    assert [is_ready(pod) for pod in pods] == [True, True]  # one of them has ranks and no part of Serve but its port
    told_of_by_allranks(space, {str(pod["metadata"]["name"]) for pod in pods})
    a_rank_that_dies_is_named(space, namespace)
    ended_by_allranks(space, namespace)


def told_of_by_allranks(space: Space, pods: set[str]) -> None:
    status = space.status("chat")
    assert (status["engine"], status["phase"], status["world_size"]) == ("ray", "running", 2)
    assert {node["name"] for node in status["nodes"]} == pods
    assert "serving: ready after" in space.allranks("logs", "chat", "--rank", "0").stdout
    listed = json.loads(space.allranks("list", "-o", "json").stdout)
    assert [(one["name"], one["engine"], one["phase"]) for one in listed] == [("chat", "ray", "running")]


def a_rank_that_dies_is_named(space: Space, namespace: Namespace) -> None:
    node = next(node for node in space.status("chat")["nodes"] if node["node"] == 1)
    kill = f"import os; os.kill({node['ranks'][0]['pid']}, 9)"
    namespace.kubectl("exec", node["name"], "-c", "ray-worker", "--", "python3", "-c", kill)
    status = space.until(lambda status: status["restarts"]["used"] == 1 and status["phase"] == "running", "chat")
    assert [(cause["rank"], cause["signal"]) for cause in status["causes"]] == [(1, "SIGKILL")]


def ended_by_allranks(space: Space, namespace: Namespace) -> None:
    ended = space.allranks("cancel", "chat")
    assert ended.returncode == 0, ended.stderr
    assert namespace.list("pods", "allranks.dev/run=chat") == []
    assert space.status("chat")["phase"] == "cancelled"


def is_ready(pod: dict[str, object]) -> bool:
    conditions: list[dict[str, str]] = pod["status"]["conditions"]  # type: ignore[index]
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def answer(namespace: Namespace) -> str:
    (head,) = namespace.list("pods", "ray.io/node-type=head")
    try:
        return namespace.kubectl("exec", head["metadata"]["name"], "-c", "ray-head", "--", "python3", "-c", ASK)
    except ClusterError:
        return ""
