"""A service on a real Ray of this machine: whatever is killed or stopped, clients hear at once, and it comes back."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from allranks.node import processes
from tests.gangs.gang import CLI
from tests.processes import command_of
from tests.serving.models import save, save_tokenizer
from tests.serving.service import Serving, serving, wait

pytest.importorskip("transformers")
pytest.importorskip("ray")
pytestmark = [pytest.mark.gang, pytest.mark.torch, pytest.mark.timeout(600)]

EXTRA = "failure: {restarts: 9, grace: 10s}\napi_key: {env: RAY_SERVICE_KEY}\n"
KEY = {"authorization": "Bearer sesame"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ray")
    save_tokenizer(save(folder / "llama"))
    return folder


def below(pid: int) -> dict[int, str]:
    """Pid and title of all processes that a process has started, and those have."""
    return {child.pid: command_of(child.pid) for child in processes.descendants(pid)}


def lives(pid: int) -> str:
    """The state of a process that is more than an entry which nobody has cleared away yet."""
    found = processes.read(pid)
    return found.state if found is not None and found.is_alive else ""


def keeper(service: Serving) -> int:
    lock = Path(service.env["XDG_STATE_HOME"], "allranks", "ray", service.name, "lock")
    return int(lock.read_text().split()[0])


def coordinator(service: Serving) -> int:
    return next(
        pid for pid, title in below(keeper(service)).items() if title.startswith("ray::ServeReplica:onray:gang")
    )


def restarts(service: Serving) -> int:
    return int(json.loads(service.cli("status", service.name, "-o", "json").stdout)["restarts"]["used"])


def answers_as_anywhere_and_only_to_who_has_the_key(service: Serving) -> None:
    asked = {"prompt": "The for", "max_tokens": 5, "temperature": 0}
    assert service.ask("/v1/completions", asked)[0] == 401
    status, body = service.ask("/v1/completions", asked, **KEY)
    assert (status, body["usage"]["completion_tokens"]) == (200, 5)
    status, body = service.ask("/v1/completions", {**asked, "model": "nope"}, **KEY)
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    assert service.ask("/v1/completions", {**asked, "stream": True}, **KEY)[1].endswith("data: [DONE]\n\n")
    assert service.ask("/generate", b"x" * 2**23, **KEY)[0] == 413
    plan = Path(service.env["XDG_STATE_HOME"], "allranks", "ray", "onray", "plan.json").read_text()
    assert "sesame" not in plan


def broken_by(service: Serving, pid: int, number: signal.Signals) -> tuple[float, list[tuple[int, Any, float]]]:
    """Signal a process while two requests run: when /health said so, and what each client got and when."""

    def ask(which: int) -> tuple[int, Any, float]:
        asked = {"max_tokens": 450, "temperature": 0, "prompt": f"the {which}", "stream": bool(which)}
        status, body = service.ask("/generate", asked, **KEY)
        return status, body, time.monotonic()

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(ask, which) for which in range(2)]
        wait("the requests run", lambda: service.ask("/health")[1].get("running") == 2)
        began = time.monotonic()
        os.kill(pid, number)
        wait("/health says that it is not well", lambda: service.ask("/health")[0] == 503)
        noticed = time.monotonic() - began
        found = [future.result() for future in running]
    return noticed, [(status, body, at - began) for status, body, at in found]


def break_and_await(service: Serving, who: str, number: signal.Signals) -> None:
    before, old = restarts(service), service.pids()
    noticed, (whole, stream) = broken_by(service, old[1] if who == "rank" else coordinator(service), number)
    assert noticed < 5, (who, number)
    assert (whole[0], whole[1]["error"]["code"]) == (503, "answer_broken"), (who, number)
    *_, error, done, _last = stream[1].split("\n\n")
    assert "the gang broke" in error, (who, number)
    assert done == "data: [DONE]"
    assert max(whole[2], stream[2]) < 10, (who, number)
    wait("it serves again", service.ready, seconds=150)
    wait("its new ranks are told", lambda: len({*service.ranks().values()} - {*old.values(), None}) == 2)
    assert {pid: state for pid in old.values() if (state := lives(pid))} == {}, (who, number)
    wait("the restart is counted", lambda: restarts(service) == before + 1)


def test_who_is_killed_or_stopped_breaks_requests_at_once_and_the_gang_serves_again(place: Path) -> None:
    with serving(place, place / "llama", "onray", EXTRA, engine="ray", RAY_SERVICE_KEY="sesame") as service:
        wait("its lines", lambda: "serving: ready after" in service.cli("logs", "onray", "--rank", "0").stdout)
        answers_as_anywhere_and_only_to_who_has_the_key(service)
        for who in ("rank", "coordinator"):
            for number in (signal.SIGKILL, signal.SIGSTOP):
                break_and_await(service, who, number)
        told = service.cli("status", "onray").stdout
        assert "restarts 4 of 9" in told
        assert "rank 1 on node 0: killed by SIGKILL" in told
        assert told.count("the gang's coordinator was lost") == 2
        there = {keeper(service): "keeper", **below(keeper(service))}
        scratch = Path(service.env["XDG_STATE_HOME"], "allranks", "ray", "onray", "scratch").read_text()
        assert len(there) > 8
        assert service.cli("cancel", "onray").returncode == 0
        assert {pid: title for pid, title in there.items() if lives(pid)} == {}
        assert not Path(scratch).exists()
        assert json.loads(service.cli("status", "onray", "-o", "json").stdout)["phase"] == "cancelled"


def test_one_gang_of_two_goes_on_answering_while_the_other_starts_again(place: Path) -> None:
    extra = "replicas: 2\nfailure: {restarts: 9, grace: 10s}\n"
    with serving(place, place / "llama", "two", extra, engine="ray", ranks=1) as service:
        wait("both gangs serve", lambda: phases(service) == ["running"] * 2, seconds=120)
        old = service.pids()
        os.kill(of_ray(service, "ray::ServeReplica:two:gang"), signal.SIGKILL)  # of either
        wait("it is seen", lambda: restarts(service) == 1)
        asked = {"prompt": "The for", "max_tokens": 5, "temperature": 0}
        answers = 0
        while phases(service) != ["running"] * 2:
            assert service.ask("/v1/completions", asked)[0] == 200
            assert service.ask("/health")[0] == 200
            answers += 1
        assert answers > 0
        assert len({*service.pids().values()} & {*old.values()}) == 1


def phases(service: Serving) -> list[str]:
    status = json.loads(service.cli("status", service.name, "-o", "json").stdout)
    return [node["phase"] for node in status["nodes"]] if status["phase"] == "running" else [status["phase"]]


SERVER = """
import http.server, os, sys, time
rank = int(os.environ["RANK"])
print("serving as rank", rank, flush=True)
while rank:
    time.sleep(1)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path in ("/up", "/who", "/health") else 404)
        self.end_headers()
        self.wfile.write(f"attempt {os.environ['ALLRANKS_ATTEMPT']} of {os.environ['WORLD_SIZE']}".encode())
http.server.HTTPServer(("", PORT), Answer).serve_forever()
"""


def test_a_server_of_ones_own_serves_behind_rays_door_and_its_ranks_start_again_together(place: Path) -> None:
    server = place / "server.py"
    server.write_text(SERVER.replace("PORT", "int(sys.argv[1])"))
    with serving(place, server, "own", "ready: /up\nfailure: {restarts: 3}\n", engine="ray") as service:
        assert service.ask("/who") == (200, "attempt 0 of 2")
        assert service.ask("/nothing")[0] == 404
        wait("its lines", lambda: service.cli("logs", "own").stdout.count("serving as rank") == 2)
        old = service.pids()
        os.kill(old[1], signal.SIGKILL)
        wait("all ranks are new", lambda: service.ask("/who") == (200, "attempt 1 of 2"))
        wait("both are told", lambda: len({*service.ranks().values()} - {*old.values(), None}) == 2)
        assert "rank 1 on node 0: killed by SIGKILL" in service.cli("status", "own").stdout
        a_lost_door_costs_no_gang(service)
        a_lost_raylet_costs_one_restart(service)


def a_lost_door_costs_no_gang(service: Serving) -> None:
    old = service.pids()
    door = of_ray(service, "ray::ServeReplica:own:door")
    os.kill(door, signal.SIGKILL)
    wait("there is another", lambda: of_ray(service, "ray::ServeReplica:own:door") not in (0, door))
    wait("it answers", lambda: who(service) == "attempt 1 of 2")
    wait("it knows what the old one knew", lambda: (service.ranks(), restarts(service)) == (old, 1))


def a_lost_raylet_costs_one_restart(service: Serving) -> None:
    os.kill(of_ray(service, "/raylet "), signal.SIGKILL)
    wait("a new cluster serves", lambda: who(service) == "attempt 2 of 2", seconds=150)
    wait("it is counted", lambda: restarts(service) == 2)
    assert "the raylet of its Ray cluster was lost" in service.cli("status", "own").stdout


def of_ray(service: Serving, title: str) -> int:
    return next((pid for pid, found in below(keeper(service)).items() if title in found), 0)


def who(service: Serving) -> str:
    try:
        return str(service.ask("/who")[1])
    except (OSError, http.client.HTTPException):
        return ""


def test_what_a_killed_keeper_leaves_is_ended_by_cancel(place: Path) -> None:
    with serving(place, place / "llama", "orphan", EXTRA, engine="ray", RAY_SERVICE_KEY="sesame") as service:
        there = below(keeper(service))
        scratch = Path(service.env["XDG_STATE_HOME"], "allranks", "ray", "orphan", "scratch").read_text()
        with subprocess.Popen(
            [*CLI, "logs", "-f", "orphan"], env=service.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as following:
            assert following.stdout is not None
            following.stdout.readline()
            os.kill(keeper(service), signal.SIGKILL)
            assert "end what is left: allranks cancel orphan" in following.communicate(timeout=30)[1]
        wait("it is told", lambda: "keeper on this machine was killed" in service.cli("status", "orphan").stdout)
        assert service.cli("cancel", "orphan").returncode == 0
        wait("all of it has ended", lambda: not [pid for pid in there if lives(pid)])
        assert not Path(scratch).exists()
