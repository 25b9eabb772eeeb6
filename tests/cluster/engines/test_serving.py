"""Services on the real operators: reached through their cluster address, broken, back again, several gangs, refused."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import allranks
from allranks.engines.kubernetes.cluster import Cluster
from allranks.engines.kubernetes.control import KubernetesEngine
from allranks.engines.kubernetes.kinds import JOB, JOBSET
from allranks.spec.load import load
from allranks.spec.service import Service
from tests.cluster.engines.conftest import ENGINES, Space
from tests.cluster.engines.kubectl import apply, kubectl
from tests.cluster.errors import ClusterError
from tests.cluster.images.kinds import FOREIGN
from tests.gangs.gang import eventually
from tests.serving.models import save, save_tokenizer

pytest.importorskip("transformers")
pytestmark = [pytest.mark.timeout(900)]
START = 300.0  # seconds: torch and transformers are imported by two pods on a busy machine
SOURCE, CODE, MODEL = Path(allranks.__file__).parents[1], "/opt/allranks", "/models/llama"
KEY = "sesame"
SERVER = """
import http.server, os, time

class Door(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if self.path == "/well" and os.path.exists("/tmp/busy") else 200)
        self.end_headers()
        self.wfile.write(f"node {os.environ['ALLRANKS_NODE']} attempt {os.environ['ALLRANKS_ATTEMPT']}\\n".encode())

if os.environ["RANK"] == "0":
    http.server.HTTPServer(("", 8080), Door).serve_forever()
time.sleep(3600)
"""
OWN: dict[str, Any] = {
    "model": None, "run": ["python3", "-uc", SERVER], "ready": "/well", "image": FOREIGN, "env": {}, "volumes": [],
    "limits": None, "api_key": None,
}  # fmt: skip
"""Of a server of one's own, in an image that has nothing of ours; it is ready unless a file says otherwise."""
ASK = """
import sys, urllib.request, urllib.error
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode() or None,
                                 {"content-type": "application/json", "authorization": "Bearer " + sys.argv[3]})
try:
    answer = urllib.request.urlopen(request, timeout=20)
    print(answer.status, answer.read().decode(), end="")
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except OSError as error:
    print(0, error)
"""
CLIENT = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client"},
    "spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "c", "image": FOREIGN, "command": ["sleep", "3600"]}],
    },
}  # fmt: skip
"""Of a user's: reaches the service by its name, and has nothing of ours."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "llama"
    save_tokenizer(save(folder))
    return folder


class Served:
    """A service of a model in the test's namespace, and a client in a pod beside it."""

    def __init__(self, space: Space, model: Path) -> None:
        self.space, self.model = space, model
        apply(space.name, CLIENT)
        document: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}}
        document["stringData"] = {"key": KEY}
        apply(space.name, document)

    def spec(self, **changes: Any) -> Path:
        fields = {
            "kind": "Service", "name": "chat", "ranks_per_node": 1, "model": MODEL, "port": 8080,
            "api_key": {"secret": "key/key"}, "env": {"PYTHONPATH": CODE, "PYTHONDONTWRITEBYTECODE": "1"},
            "limits": {"context": 128, "concurrent": 4}, "failure": {"grace": "5s", "restarts": 5},
            "volumes": [
                {"host": str(SOURCE), "path": CODE, "read_only": True},
                {"host": str(self.model), "path": MODEL, "read_only": True},
            ],
        }  # fmt: skip
        path = self.space.spec(**{**fields, **changes})
        written = json.loads(path.read_text())
        if "run" not in changes:
            del written["run"]
        path.write_text(json.dumps({field: value for field, value in written.items() if value is not None}))
        return path

    def start(self, engine: str, spec: Path) -> str:
        done = self.space.allranks("serve", str(spec), "--engine", engine, "--detach", timeout=START)
        assert done.returncode == 0, done.stderr
        assert "chat answers at http://chat-http." in done.stderr
        return done.stdout.strip().partition(" ")[0]

    def ask(self, url: str, body: Any = None, key: str = KEY) -> tuple[int, str]:
        text = "" if body is None else json.dumps(body)
        said = kubectl("-n", self.space.name, "exec", "client", "--", "python3", "-c", ASK, url, text, key)
        status, _, answer = said.partition(" ")
        return int(status), answer

    def reach(self, url: str) -> str:
        """Its answer, once every host's kube-proxy has heard that it is ready: a second or two after the API server."""
        wait("the address leads there", lambda: self.ask(f"{url}/")[0] == 200, seconds=30)
        return self.ask(f"{url}/")[1]

    def tokens(self, url: str) -> str:
        status, body = self.ask(f"{url}/generate", {"prompt": "The for", "max_tokens": 5, "temperature": 0})
        assert status == 200, body
        return str(json.loads(body)["text"])

    def sh(self, pod: str, line: str) -> None:
        kubectl("-n", self.space.name, "exec", pod, "--", "sh", "-c", line)

    def kill(self, rank: int) -> None:
        """One rank a node: it is the node's only one."""
        status = self.space.until(lambda status: bool(status["nodes"][rank]["ranks"][0]["pid"]), "chat")
        node = status["nodes"][rank]
        self.sh(node["name"], f"kill -9 {node['ranks'][0]['pid']}")

    def endpoints(self) -> list[str]:
        """The pods that get requests."""
        shown = "jsonpath={range .items[*].endpoints[?(@.conditions.ready==true)]}{.targetRef.name} {end}"
        label = "kubernetes.io/service-name=chat-http"
        return sorted(kubectl("-n", self.space.name, "get", "endpointslices", "-l", label, "-o", shown).split())


@pytest.fixture
def served(space: Space, model: Path) -> Served:
    return Served(space, model)


def wait(what: str, condition: Callable[[], Any], seconds: float = 180) -> Any:
    """As ``eventually``; a pod that has just gone cannot be asked."""

    def seen() -> Any:
        with contextlib.suppress(ClusterError):
            return condition()
        return None

    return eventually(what, seen, seconds)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_address_leads_to_node_0_while_it_is_ready(served: Served, engine: str) -> None:
    url = served.start(engine, served.spec(**OWN))
    status = served.space.status("chat")
    name = status["nodes"][0]["name"]
    assert served.reach(url) == "node 0 attempt 0\n"
    served.sh(name, "touch /tmp/busy")
    wait("its address leads nowhere", lambda: not served.endpoints() and served.ask(f"{url}/")[0] == 0)
    served.sh(name, "rm /tmp/busy")
    wait("its address leads there again", lambda: served.endpoints() == [name])
    served.kill(1)
    wait("the gang is back", lambda: served.ask(f"{url}/") == (200, "node 0 attempt 1\n"))
    done = served.space.allranks("cancel", "chat")
    assert "run chat: cancelled" in done.stdout, done.stderr


def test_a_model_over_two_pods_answers_and_is_back_after_a_rank_was_killed(served: Served) -> None:
    url = served.start("jobset", served.spec())
    wait("the address leads there", lambda: served.ask(f"{url}/ready")[0] == 200, seconds=30)
    wanted = served.tokens(url)
    status = served.space.status("chat")
    assert served.endpoints() == [status["nodes"][0]["name"]]
    assert served.ask(f"{url}/v1/models", key="wrong")[0] == 401
    assert KEY not in served.space.allranks("plan", str(served.spec()), "--engine", "jobset", "-o", "json").stdout
    served.kill(1)
    served.space.until(lambda status: status["restarts"]["used"] == 1, "chat")
    wait("it answers again", lambda: served.ask(f"{url}/ready")[0] == 200)
    assert served.tokens(url) == wanted


def test_gangs_of_one_service_share_an_address_and_break_apart(served: Served) -> None:
    url = served.start("jobset", served.spec(**OWN, nodes=1, replicas=2))
    status = served.space.status("chat")
    assert [node["name"].rpartition("-")[0] for node in status["nodes"]] == ["chat-0-w-0-0", "chat-1-w-0-0"]
    assert served.endpoints() == sorted(node["name"] for node in status["nodes"])
    done = served.space.allranks("serve", str(served.spec(**OWN, nodes=1)), "--engine", "jobset", "--detach")
    assert (done.returncode, "a service named chat is alive" in done.stderr) == (69, True), done.stderr
    assert "name one: chat-0, chat-1" in served.space.allranks("logs", "chat").stderr
    kubectl("-n", served.space.name, "delete", "pod", status["nodes"][0]["name"], "--wait=false")
    wait("one is left", lambda: served.endpoints() == [status["nodes"][1]["name"]], seconds=30)
    served.reach(url)  # nobody waits for the other
    wait("both are there", lambda: len(served.endpoints()) == 2)
    status = served.space.status("chat")
    assert [status["restarts"]["used"], len(status["causes"])] == [1, 1]
    assert "chat-0: " in status["causes"][0]["message"]
    done = served.space.allranks("cancel", "chat")
    assert "run chat: cancelled" in done.stdout, done.stderr
    assert served.space.status("chat-1")["phase"] == "cancelled"


def test_a_gang_of_a_service_that_does_not_start_in_time_ends(served: Served) -> None:
    nowhere = {"nodeSelector": {"kubernetes.io/hostname": "none"}}
    spec = served.spec(**OWN, nodes=1, replicas=2, pod=nowhere, failure={"start_timeout": "5s"})
    done = served.space.allranks("serve", str(spec), "--engine", "jobset", "--detach", timeout=START)
    assert done.returncode == 75, done.stderr
    assert "chat-1: node 0 did not start within 5 s: 0 of 1 nodes there; chat-1-w-0-0" in done.stderr
    assert not kubectl("-n", served.space.name, "get", "jobset", "-o", "name")


class WithoutJobSet(KubernetesEngine):
    """The engine as it is where JobSet is not installed."""

    def cluster(self) -> Cluster:
        return replace(super().cluster(), jobset=False)


def test_a_plain_job_serves_too(served: Served) -> None:
    engine = WithoutJobSet("jobset", "", JOBSET, fallback=JOB)
    service = load(served.spec(**OWN, nodes=1))
    assert isinstance(service, Service)
    plan = engine.plan_service(service, served.space.folder)
    assert [document["kind"] for document in plan.documents][-3:] == ["Service", "Service", "Job"]
    engine.submit(plan, detach=True)
    wait("it answers", lambda: engine.answers(plan), START)
    served.reach(f"http://chat-http.{served.space.name}:8080")
    assert "run chat: cancelled" in served.space.allranks("cancel", "chat").stdout


def test_what_no_restart_would_mend_ends_a_service_with_its_reason(served: Served) -> None:
    spec = served.spec(image=FOREIGN, env={})
    done = served.space.allranks("serve", str(spec), "--engine", "jobset", "--detach", timeout=START)
    assert done.returncode != 0
    assert "has no allranks, torch, transformers, fastapi, uvicorn, prometheus_client; use an image with" in done.stderr
    spec = served.spec(model="/models/none", name="none")
    done = served.space.allranks("serve", str(spec), "--engine", "jobset", "--detach", timeout=START)
    assert (done.returncode, "no such model: /models/none" in done.stderr) == (65, True), done.stderr
    assert "0 of 5 used; no other would mend it" in done.stderr
