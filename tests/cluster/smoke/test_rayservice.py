"""KubeRay: a RayService with a Serve application, asked through its Service."""

from __future__ import annotations

import json

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.images import ray
from tests.cluster.namespace import Namespace, Object
from tests.cluster.smoke.conftest import Agrees, Smoke

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
ASK = "import urllib.request as u; print(u.urlopen('http://rs-serve-svc:8000/', timeout=10).read().decode())"


def test_a_serve_application_answers_through_its_service(smoke: Smoke, agrees: Agrees) -> None:
    service = smoke("rayservice.yaml", ray=ray.VERSION)
    service.await_condition("rayservice", "rs", "Ready", seconds=400)
    said = service.wait("an answer", lambda: answer(service), 120)
    assert said["host"].startswith("rs-")
    agrees("kuberay", "rayservice", replica=said["look"])


def answer(service: Namespace) -> Object:
    """From the head's pod, so that the name and the address of the Service are the cluster's."""
    (head,) = service.list("pods", "ray.io/node-type=head")
    try:
        said: Object = json.loads(
            service.kubectl("exec", head["metadata"]["name"], "-c", "ray-head", "--", "python3", "-c", ASK)
        )
    except ClusterError:
        return {}
    return said
