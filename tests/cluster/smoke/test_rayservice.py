"""KubeRay: a RayService with a Serve application, asked through its Service."""

from __future__ import annotations

import json

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.images import ray
from tests.cluster.namespace import Namespace, Object
from tests.cluster.smoke.conftest import Agrees, Smoke

pytestmark = pytest.mark.timeout(600)
ASK = "import urllib.request as u; print(u.urlopen('http://rs-serve-svc:8000/', timeout=10).read().decode())"


def test_a_serve_application_answers_through_its_service(smoke: Smoke, agrees: Agrees) -> None:
    service = smoke("rayservice.yaml", ray=ray.VERSION)
    service.await_condition("rayservice", "rs", "Ready", seconds=400)
    service.wait("an answer from the head", lambda: "-head-" in answer(service).get("host", ""), 120)
    said = service.wait("an answer from the other node", lambda: by_the_worker(answer(service)), 120)
    agrees("kuberay", "rayservice", replica=said["look"])


def by_the_worker(said: Object) -> Object:
    return said if "-worker-" in said.get("host", "") else {}


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
