"""A cluster that says no, or nothing any more, while a run is being made: one message, and what is left is told."""

from __future__ import annotations

import http.server
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import urllib3

from allranks.engines.kubernetes import kubeconfig
from tests.cluster.engines.conftest import ENGINES, Space
from tests.cluster.engines.kubectl import apply, kubectl
from tests.engines.kubernetes import servers

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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_api_server_makes_an_object_leaves_nothing(
    space: Space, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    made, ended = threading.Event(), threading.Event()

    def handle(one: Between) -> None:
        if one.command == "POST" and not made.is_set():
            one.ask()
            made.set()
            ended.wait(60)
            one.vanish()
        else:
            one.pass_on()

    with between(space.folder / "slow", handle) as path:
        monkeypatch.setenv("KUBECONFIG", str(path))
        words = [sys.executable, "-m", "allranks", "run", "--engine", "jobset", str(space.spec())]
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as command:
            assert made.wait(60)
            command.send_signal(number)
            _, err = command.communicate(timeout=60)
            ended.set()
    assert (command.returncode, err.strip()) == (128 + number, "")
    monkeypatch.setenv("KUBECONFIG", str(space.cluster.kubeconfig))
    assert left(space) == []


def left(space: Space) -> list[str]:
    kinds = ",".join(["secret", "configmap", "trainingruntime", *RESOURCES.values()])
    return kubectl("-n", space.name, "get", kinds, "-l", "allranks.dev/run", "-o", "name").split()


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("mpijob", "this cluster has no MPIJob (kubeflow.org/v2beta1): the Kubeflow MPI operator is not installed"),
        ("pytorchjob", "this cluster has no PyTorchJob (kubeflow.org/v1): the Kubeflow training operator is not inst"),
        (
            "trainjob",
            "this cluster has no TrainingRuntime (trainer.kubeflow.org/v1alpha1): Kubeflow Trainer is not inst",
        ),
    ],
)
def test_an_operator_that_is_missing_is_named_with_where_it_is_told_how_to_install_it(
    space: Space, monkeypatch: pytest.MonkeyPatch, engine: str, said: str
) -> None:
    def without_operators(one: Between) -> None:
        if one.path.startswith(("/apis/kubeflow.org", "/apis/trainer.kubeflow.org")):
            one.answer(404, "text/plain; charset=utf-8", b"404 page not found\n")
        else:
            one.pass_on()

    with between(space.folder / "bare", without_operators) as path:
        monkeypatch.setenv("KUBECONFIG", str(path))
        for verb in (["run"], ["plan", "--check"]):
            done = space.allranks(*verb, "--engine", engine, str(space.spec()))
            assert done.returncode == 69, done.stderr
            (line,) = [line for line in done.stderr.splitlines() if "this cluster has no" in line]
            assert line.startswith(f"allranks: {said}")
            assert "; its administrator installs it as https://" in line
    assert left(space) == []


class Between(http.server.BaseHTTPRequestHandler):
    """One request to an API server that somebody stands before."""

    protocol_version = "HTTP/1.1"
    handle_one: Callable[[Between], None]
    pool: urllib3.PoolManager
    server_url: str

    def do(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        type(self).handle_one(self)

    do_GET = do_POST = do_PATCH = do_DELETE = do

    def ask(self) -> urllib3.BaseHTTPResponse:
        headers = {name: self.headers[name] for name in ("Content-Type", "Accept") if name in self.headers}
        return self.pool.request(self.command, self.server_url + self.path, body=self.body or None, headers=headers)

    def pass_on(self) -> None:
        asked = self.ask()
        self.answer(asked.status, asked.headers.get("Content-Type", ""), asked.data)

    def answer(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def vanish(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def between(path: Path, handle: Callable[[Between], None]) -> Iterator[Path]:
    """A kubeconfig of the cluster as seen through ``handle``."""
    access = kubeconfig.load()
    pool = urllib3.PoolManager(ssl_context=access.tls())
    handler = type("One", (Between,), {"handle_one": handle, "pool": pool, "server_url": access.server})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield servers.kubeconfig(path, f"http://127.0.0.1:{server.server_address[1]}")
        finally:
            server.shutdown()


@contextmanager
def vanishing(path: Path, creations: int, is_heard: bool) -> Iterator[Path]:
    """A kubeconfig of an API server that is gone after so many objects were made.

    ``is_heard`` is whether the next one is still made, and only its answer lost.
    """
    made = 0

    def handle(one: Between) -> None:
        nonlocal made
        is_creation = one.command == "POST"
        if made > creations or (is_creation and made == creations and not is_heard):
            made += 1
            one.vanish()
            return
        asked = one.ask()
        made += is_creation and asked.status == 201
        if made > creations:
            one.vanish()
            return
        one.answer(asked.status, asked.headers.get("Content-Type", ""), asked.data)

    with between(path, handle) as made_path:
        yield made_path
