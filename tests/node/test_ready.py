"""Whether a node may be called ready, and whether its Python has what ranks need."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from allranks.node import needs, ready
from allranks.node.gang import Gang
from tests.node.gangs import make_gang


class Door(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/ready" else 503)
        self.end_headers()
        self.wfile.write(b"loading")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Door) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(asdict(make_gang(engine="jobset", state=str(tmp_path / "state")))))
    (tmp_path / "state").mkdir()
    return str(path)


def started(plan: str, node: int, phase: str = "running") -> None:
    state = Path(plan).with_name("state")
    (state / f"node-{node}.json").write_text("{}")
    if node == 0:
        (state / "status.json").write_text(json.dumps({"phase": phase}))


def test_no_node_is_ready_before_it_has_started_ranks(plan: str, port: int) -> None:
    assert ready.main([plan, str(port), "/ready"]) == 1


def test_a_node_that_serves_nothing_is_ready_with_its_ranks(plan: str) -> None:
    started(plan, 1)
    assert ready.main([plan, "1", "/ready"]) == 0


def test_node_0_is_ready_by_its_servers_own_word(plan: str, port: int, capsys: pytest.CaptureFixture[str]) -> None:
    started(plan, 0)
    assert ready.main([plan, str(port), "/ready"]) == 0
    assert ready.main([plan, str(port), "/other"]) == 1
    assert ready.main([plan, "1", "/ready"]) == 1
    assert capsys.readouterr().out.splitlines() == ["/other: 503 loading", "port 1: [Errno 111] Connection refused"]


def test_where_names_wait_for_readiness_node_0_is_asked_only_while_ranks_run(plan: str) -> None:
    words = [plan, "1", "/ready", "--from-the-start"]
    assert ready.main(words) == 0
    started(plan, 0, "restarting")
    assert ready.main(words) == 0
    started(plan, 0, "running")
    assert ready.main(words) == 1


def gang(tmp_path: Path, *modules: str) -> Gang:
    argv = (sys.executable, "-m", "server")
    return make_gang(argv=argv, workdir=str(tmp_path), needs=modules, to_have_them="use another image")


def test_what_the_ranks_python_lacks_is_named_with_what_to_do(tmp_path: Path) -> None:
    needs.check(gang(tmp_path, "json", "asyncio"), os.environ)
    (tmp_path / "neither").mkdir()  # in the ranks' working folder, as /allranks is where that is /
    with pytest.raises(needs.Lacking, match=r"python\S* has no nowhere, neither; use another image"):
        needs.check(gang(tmp_path, "json", "nowhere", "neither"), os.environ)


def test_a_module_on_the_ranks_own_path_is_there(tmp_path: Path) -> None:
    (tmp_path / "own.py").touch()
    needs.check(gang(tmp_path, "own"), {**os.environ, "PYTHONPATH": str(tmp_path)})
