"""A RayService of ours on the real KubeRay: two pods, one rank in each, Ready and answering."""

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


def test_it_becomes_ready_and_answers_through_its_service(space: Space, namespace: Namespace, tmp_path: Path) -> None:
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
    made = tmp_path / "made.yaml"
    made.write_text(planned.stdout)
    namespace.kubectl("apply", "-f", str(made))
    namespace.await_condition("rayservice", "chat", "Ready", seconds=500)
    said = namespace.wait("an answer", lambda: answer(namespace), 60)
    assert json.loads(said)["usage"]["completion_tokens"] == 5
    pods = namespace.list("pods", "ray.io/node-type=worker")
    assert [is_ready(pod) for pod in pods] == [True, True]  # one of them has ranks and no part of Serve but its port


def is_ready(pod: dict[str, object]) -> bool:
    conditions: list[dict[str, str]] = pod["status"]["conditions"]  # type: ignore[index]
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def answer(namespace: Namespace) -> str:
    (head,) = namespace.list("pods", "ray.io/node-type=head")
    try:
        return namespace.kubectl("exec", head["metadata"]["name"], "-c", "ray-head", "--", "python3", "-c", ASK)
    except ClusterError:
        return ""
