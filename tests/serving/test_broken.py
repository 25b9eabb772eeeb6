"""A service whose ranks are killed and stopped under load: clients hear of it at once, and it comes back by itself."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from allranks.node import processes
from allranks.node.listen import free_port
from tests.gangs.gang import CLI
from tests.serving.models import save, save_tokenizer
from tests.serving.service import Serving, serving, wait

pytest.importorskip("transformers")
pytestmark = [pytest.mark.gang, pytest.mark.torch, pytest.mark.timeout(500)]


def break_it(service: Serving, rank: int, number: signal.Signals) -> tuple[list[tuple[int, Any, float]], float]:
    """Signal a rank while four requests run; what each client got, and when /health said that something is wrong."""
    asked = {"max_tokens": 450, "temperature": 0}
    pids = service.pids()

    def ask(which: int) -> tuple[int, Any, float]:
        status, body = service.ask("/generate", {**asked, "prompt": f"the {which}", "stream": bool(which % 2)})
        return status, body, time.monotonic()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = [pool.submit(ask, which) for which in range(4)]
        wait("the requests run", lambda: service.ask("/health")[1]["running"] == 4)
        began = time.monotonic()
        os.kill(pids[rank], number)
        wait("/health says that it is not well", lambda: service.state() != "healthy")
        noticed = time.monotonic() - began
        found = [future.result() for future in running]
    return [(status, body, at - began) for status, body, at in found], noticed


def test_ranks_that_are_killed_or_stopped_break_requests_at_once_and_the_gang_serves_again(
    place: Path, model: Path
) -> None:
    with serving(place, model, "broken", "failure: {restarts: 9, grace: 10s}\n") as service:
        wanted = service.ask("/generate", {"prompt": "The for", "max_tokens": 9, "temperature": 0})[1]["text"]
        for rank, number in ((1, signal.SIGKILL), (1, signal.SIGSTOP), (0, signal.SIGSTOP), (0, signal.SIGKILL)):
            clients, noticed = break_it(service, rank, number)
            assert noticed < 5, (rank, number)
            for which, (status, body, took) in enumerate(clients):
                assert took < 10, (rank, number, took)
                if which % 2:  # its stream had begun: it ends by an error, not as if it were complete
                    *_, error, done, _last = body.split("\n\n") if body.endswith("\n\n") else ["", "", ""]
                    assert "the gang broke" in error, body[-300:]
                    assert done == "data: [DONE]"
                else:
                    assert (status, body["error"]["code"]) == (503, "answer_broken")
            wait("it serves again", service.ready, seconds=120)
            answer = service.ask("/generate", {"prompt": "The for", "max_tokens": 9, "temperature": 0})[1]
            assert answer["text"] == wanted
        old = service.pids()
        os.kill(old[0], signal.SIGTERM)  # by somebody who is not its agent: it ends well, and is missed all the same
        wait("it is over", lambda: service.ranks()[0] != old[0], seconds=120)
        wait("it serves again", service.ready, seconds=120)
        causes = json.loads(service.cli("status", "broken", "-o", "json").stdout)["causes"]
        named = [(cause["rank"], cause["kind"]) for cause in causes]
        assert named == [(1, "signal"), (1, "hang"), (0, "hang"), (0, "signal"), (0, "exit")], causes
        killed = service.cli("logs", "broken", "--attempt", "0").stdout
        assert "serving: rank 0: Connection closed by rank 1: it is gone" in killed
        assert "Traceback" not in killed
        told = service.cli("status", "broken").stdout
        assert "restarts 5 of 9" in told
        assert "rank 1 on node 0: killed by SIGKILL" in told


def test_an_http_process_that_is_stopped_is_given_up_with_its_gang(place: Path, model: Path) -> None:
    with serving(place, model, "stuck", "failure: {restarts: 3}\n") as service:
        old, found = service.pids(), processes.listener(service.port)
        assert found is not None
        os.kill(found[0], signal.SIGSTOP)
        wait("the gang is another", lambda: service.ranks()[0] not in (old[0], None), seconds=120)
        wait("it serves again", service.ready, seconds=120)
        assert "the HTTP process has said nothing for 20 s" in service.cli("logs", "stuck", "--attempt", "0").stdout


def test_a_rank_that_is_stopped_and_has_no_others_is_given_up_by_the_http_process(place: Path, model: Path) -> None:
    with serving(place, model, "alone", ranks=1) as service:
        os.kill(service.pids()[0], signal.SIGSTOP)
        asked = {"prompt": "a", "max_tokens": 8}
        assert service.ask("/v1/completions", asked)[0] == 503  # it was stopped before, and that is told at last
        wait("it serves again", lambda: service.ready() and service.state() == "healthy")
        assert "said nothing for 20 s, and is ended" in service.cli("status", "alone").stdout


def test_who_ends_a_service_lets_running_requests_end(place: Path, model: Path) -> None:
    ended = serving(place, model, "ended", "failure: {grace: 30s}\n")
    with ended as service, concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = {"prompt": "a", "max_tokens": 200, "temperature": 0}
        running = pool.submit(service.ask, "/generate", asked)
        wait("the request runs", lambda: service.ask("/health")[1]["running"] == 1)
        ending = subprocess.Popen([*CLI, "cancel", "ended"], env=service.env, stderr=subprocess.DEVNULL)
        wait("it takes no more", lambda: not service.ready())
        status, body = running.result()
        assert (status, body["usage"]["completion_tokens"]) == (200, 200)
        ending.wait(60)


def test_what_cannot_be_served_is_told_before_anything_starts(place: Path, model: Path) -> None:
    service = Serving("none", 1, {**os.environ, "XDG_STATE_HOME": str(place / "state")})
    cases: list[tuple[list[str], int, str]] = [
        (["--model", str(model), "--ranks", "3"], 65, "cannot be shared by 3 ranks; allowed are 1, 2, 4 ranks"),
        (["--model", "./nope", "--ranks", "2"], 65, "no such model"),
        (["--model", str(model), "--shard", "magic"], 2, "allowed: auto, transformers, deepspeed"),
        ([], 2, "nothing to serve"),
    ]
    for words, wanted, message in cases:
        done = subprocess.run([*CLI, "serve", *words], env=service.env, cwd=place, capture_output=True, text=True)
        assert (done.returncode, message in done.stderr) == (wanted, True), done.stderr
    assert "llama" not in service.cli("list").stdout  # nor is anything left of it


def test_what_only_the_ranks_can_find_wrong_ends_the_run_at_once_whatever_restarts_are_left(place: Path) -> None:
    save_tokenizer(save(place / "torn"))
    weights = place / "torn" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])  # a copy that was broken off
    env = {**os.environ, "XDG_STATE_HOME": str(place / "state"), "XDG_CACHE_HOME": str(place / "cache")}
    words = ["serve", "--model", str(place / "torn"), "--ranks", "2", "--name", "torn", "--detach"]
    service = Serving("torn", free_port(), env)
    done = service.cli(*words, "--port", str(service.port), "--restarts", "9")
    assert done.returncode == 65, done.stderr
    assert f"the model in {place}/torn cannot be loaded" in done.stderr
    assert "0 of 9 used; no other would mend it" in done.stderr
    assert all(not Path(f"/proc/{pid}").exists() for pid in service.ranks().values() if pid)
