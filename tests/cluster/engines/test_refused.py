"""A cluster that says no, or nothing any more, while a run is being made: one message, and what is left is told."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import urllib3

from allranks.engines.kubernetes import kubeconfig
from tests.cluster.engines.conftest import Space
from tests.cluster.engines.kubectl import apply, kubectl

ENGINES = ["jobset", "mpijob", "trainjob", "pytorchjob"]
RESOURCES = {"jobset": "jobsets", "mpijob": "mpijobs", "trainjob": "trainjobs", "pytorchjob": "pytorchjobs"}


@pytest.fixture
def policy(space: Space) -> Iterator[None]:
    """A rule of the cluster, for the test's namespace alone, that refuses every engine's object."""
    about = {"metadata": {"name": space.name}, "apiVersion": "admissionregistration.k8s.io/v1"}
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": list(RESOURCES.values())}
    here = {"matchLabels": {"kubernetes.io/metadata.name": space.name}}
    spec = {
        "failurePolicy": "Fail", "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "false", "message": "gangs need a cost centre"}],
    }  # fmt: skip
    bound = {
        "policyName": space.name, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": here},
    }  # fmt: skip
    apply(space.name, {**about, "kind": "ValidatingAdmissionPolicy", "spec": spec})
    apply(space.name, {**about, "kind": "ValidatingAdmissionPolicyBinding", "spec": bound})
    try:
        yield
    finally:
        kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", space.name)


def test_a_rule_of_the_cluster_that_refuses_is_told_and_nothing_is_left(space: Space, policy: None) -> None:
    until = time.monotonic() + 60
    for engine in ENGINES:
        while "cost centre" not in (done := checked(space, engine)) and time.monotonic() < until:
            time.sleep(0.5)  # the rule is not in force at once
        assert "cost centre" in done
        run = space.allranks("run", "--engine", engine, str(space.spec()))
        assert run.returncode == 69, run.stderr
        last = run.stderr.strip().splitlines()[-1]
        assert "was refused by the cluster's own rules" in last
        assert "gangs need a cost centre" in last
        assert "no right" not in run.stderr
        assert left(space) == []


def checked(space: Space, engine: str) -> str:
    return space.allranks("plan", "--check", "--engine", engine, str(space.spec())).stderr


@pytest.mark.parametrize("is_heard", [False, True], ids=["before it hears", "before it answers"])
@pytest.mark.parametrize("creations", [0, 1, 2])
def test_what_is_left_is_told_where_the_api_server_vanishes(
    space: Space, monkeypatch: pytest.MonkeyPatch, creations: int, is_heard: bool
) -> None:
    with vanishing(space.folder / "vanishing", creations, is_heard) as path:
        monkeypatch.setenv("KUBECONFIG", str(path))
        done = space.allranks("run", "--engine", "jobset", str(space.spec()))
    assert done.returncode == 69, done.stderr
    assert "Traceback" not in done.stderr
    assert "cannot be reached" in done.stderr
    there = left(space)
    assert len(there) == creations + is_heard
    assert "perhaps" in done.stderr
    command = done.stderr.rpartition("remove them with: kubectl ")[2].split()
    kubectl(*command)
    assert left(space) == [], done.stderr


def left(space: Space) -> list[str]:
    kinds = ",".join(["secret", "configmap", "trainingruntime", *RESOURCES.values()])
    return kubectl("-n", space.name, "get", kinds, "-l", "allranks.dev/run", "-o", "name").split()


@contextmanager
def vanishing(path: Path, creations: int, is_heard: bool) -> Iterator[Path]:
    """A kubeconfig of an API server that is gone after so many objects were made.

    ``is_heard`` is whether the next one is still made, and only its answer lost.
    """
    access = kubeconfig.load()
    pool = urllib3.PoolManager(ssl_context=access.tls())
    made = 0

    class Between(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do(self) -> None:
            nonlocal made
            is_creation = self.command == "POST"
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if made > creations or (is_creation and made == creations and not is_heard):
                made += 1
                self.vanish()
                return
            headers = {name: self.headers[name] for name in ("Content-Type", "Accept") if name in self.headers}
            answer = pool.request(self.command, access.server + self.path, body=body or None, headers=headers)
            made += is_creation and answer.status == 201
            if made > creations:
                self.vanish()
                return
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers.get("Content-Type", ""))
            self.send_header("Content-Length", str(len(answer.data)))
            self.end_headers()
            self.wfile.write(answer.data)

        def vanish(self) -> None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, *_: object) -> None:
            pass

        do_GET = do_POST = do_PATCH = do_DELETE = do

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Between) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        cluster = {"server": f"http://127.0.0.1:{server.server_address[1]}"}
        path.write_text(json.dumps({
            "clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x",
        }))  # fmt: skip
        try:
            yield path
        finally:
            server.shutdown()
