"""Load on an endpoint: what is asked when, what counts as an answer, and what is told of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks.bench.load.result import Spread
from allranks.bench.load.wire import Endpoint as Where
from allranks.bench.load.wishes import Wanted
from allranks.cli import bench_serve
from allranks.cli.main import call
from tests.bench.endpoint import EACH, FIRST, Endpoint, endpoint

FEW = ("--clients", "2", "--requests", "4", "--warm-up", "0", "-o", "json")


@pytest.fixture
def well() -> Iterator[Endpoint]:
    with endpoint() as server:
        yield server


def test_latencies_are_those_of_the_server_and_its_own_count_of_tokens_is_believed(
    well: Endpoint, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(["bench", "serve", well.url, *FEW]) == 0
    told = json.loads(capfd.readouterr().out)
    (row,) = told["rows"]
    assert (row["clients"], row["answers"], row["tokens"], row["prompt_tokens"]) == (2, 4, 20, 12)
    assert (row["tokens_counted_by_server"], told["complete"]) == (True, True)
    assert row["ttft_ms"]["p50"] >= FIRST * 1e3
    assert row["itl_ms"]["p50"] >= EACH * 1e3 * 0.9
    assert row["e2e_ms"]["p50"] >= (FIRST + 3 * EACH) * 1e3
    assert row["ttft_ms"]["p50"] < row["e2e_ms"]["p50"]


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("cut", "cut", "in the midst of the answer"),
        ("polite", "cut", "ended without a finish_reason"),
        ("fails", "stream", "the gang broke"),
        ("odd", "malformed", 'not as OpenAI\'s: {"choices": [], "usage": {"tokens": 3}}'),
        ("busy", "http 429", "I am busy"),
        ("broken", "http 500", "I am broken"),
        ("page", "cut", "without a finish_reason"),
        ("silent", "timeout", "no whole answer within 0.5 s"),
    ],
)
def test_what_is_no_whole_answer_is_an_error_of_its_kind(
    how: str, kind: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with endpoint(how) as server:
        assert call(["bench", "serve", server.url, *FEW, "--timeout", "500ms" if how == "silent" else "60s"]) == 1
    heard = capfd.readouterr()
    (row,) = json.loads(heard.out)["rows"]
    assert (row["answers"], row["errors"]) == (0, {kind: 4})
    assert said in row["messages"][kind]
    assert f"2 clients: 4 x {kind}" in heard.err


def test_an_open_loop_asks_when_it_is_time_whatever_the_server_does(capfd: pytest.CaptureFixture[str]) -> None:
    with endpoint("silent") as server:
        began = time.monotonic()
        words = ["--rate", "20", "--requests", "20", "--deadline", "3s", "--warm-up", "0", "-o", "json"]
        assert call(["bench", "serve", server.url, *words]) == 1
        took = time.monotonic() - began
        assert len(server.came) == 20  # none of which waited for an answer
    (row,) = json.loads(capfd.readouterr().out)["rows"]
    assert row["errors"] == {"deadline": 20}
    assert row["messages"]["deadline"] == "not answered when 3 s were over"
    assert took < 30


def test_tokens_that_are_not_counted_are_taken_by_piece_and_that_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    with endpoint("uncounted") as server:
        assert call(["bench", "serve", server.url, "--clients", "1", "--requests", "1"]) == 0
    assert "the server counts no tokens" in capfd.readouterr().out


def test_whole_answers_and_further_fields_can_be_asked_for_and_the_key_is_sent(
    well: Endpoint, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("A_KEY", "sesame")
    extra = ["--no-stream", "--body", '{"ignore_eos": true, "temperature": null}', "--key-env", "A_KEY"]
    assert call(["bench", "serve", well.url, *FEW, "--prompt", "3-5", *extra]) == 0
    for body in well.bodies:
        assert body["key"] == "Bearer sesame"
        assert (body["ignore_eos"], "temperature" in body, "stream" in body) == (True, False, False)
        assert 3 <= len(body["prompt"]) <= 5
    (row,) = json.loads(capfd.readouterr().out)["rows"]
    assert (row["tokens"], row["ttft_ms"]) == (16, None)


def test_a_seed_gives_the_same_requests_again() -> None:
    def first(seed: int, **wanted: object) -> list[object]:
        wishes = Wanted("m", prompt=(2, 9), new=(1, 50), seed=seed, **wanted).wishes()  # type: ignore[arg-type]
        return [next(wishes).body for _ in range(5)]

    assert first(1) == first(1) != first(2)
    assert first(1, api="chat") == first(1, api="chat")


def test_rounds_tell_the_speed_while_all_were_decoding(well: Endpoint, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(["bench", "serve", well.url, "--clients", "3", "--rounds", "2", "--warm-up", "0", "-o", "json"]) == 0
    (row,) = json.loads(capfd.readouterr().out)["rows"]
    assert row["requests"] == 6
    assert 0 < row["decoding_tokens_per_second"] <= 3 * 5 / (3 * EACH)


def test_a_picture_is_drawn(well: Endpoint, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ["--clients", "1,2", "--requests", "2", "--warm-up", "0", "--png", str(tmp_path / "load.png")]
    assert call(["bench", "serve", well.url, *words]) == 0
    assert (tmp_path / "load.png").read_bytes().startswith(b"\x89PNG")


def test_who_interrupts_gets_what_there_is_by_then(well: Endpoint) -> None:
    command = [sys.executable, "-m", "allranks", "bench", "serve", well.url, "--clients", "2", "--duration", "1h"]
    process = subprocess.Popen([*command, "-o", "json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    until = time.monotonic() + 30
    while len(well.came) < 8 and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    told = json.loads(process.communicate(timeout=30)[0])
    assert (process.returncode, told["complete"]) == (130, False)
    assert told["rows"][0]["answers"] >= 4
    assert told["rows"][0]["errors"] == {}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["ftp://x"], 2, "allowed is http://HOST:PORT or https://HOST:PORT"),
        (["http://127.0.0.1:1"], 69, "http://127.0.0.1:1/v1/models does not answer"),
        (["http://a..b:1"], 69, "http://a..b:1/v1/models does not answer: a..b:1: "),
        (["x", "--clients", "0"], 2, "--clients: found '0'; allowed are numbers above 0, as in 1,8,64"),
        (["x", "--clients", "1", "--rate", "1"], 2, "--clients and --rate: allowed is one of them"),
        (["x", "--rate", "nan"], 2, "--rate: found 'nan'"),
        (["x", "--prompt", "9-3"], 2, "--prompt: found '9-3'; allowed is a number of tokens"),
        (["x", "--body", "[]"], 2, "--body: allowed is an object"),
        (["x", "--timeout", "5"], 2, "a duration needs its unit: write 5s"),
        (["x", "--key-env", "NOBODY_SET_IT"], 2, "--key-env: NOBODY_SET_IT is not set in this shell"),
        (["x", "--requests", "0"], 2, "--requests: found 0; allowed is 1 or more"),
        (["x", "--png", "/nowhere/x.png"], 2, "there is no folder /nowhere"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    words: list[str], code: int, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(["bench", "serve", *words]) == code
    assert message in capfd.readouterr().err


def test_an_endpoint_that_refuses_the_first_request_or_lists_no_model_is_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_serve, "MODELS_WAIT", 0.5)
    with endpoint("stalls") as server:
        assert call(["bench", "serve", server.url]) == 69
        assert "/v1/models does not answer: no whole answer within 0.5 s" in capfd.readouterr().err
    monkeypatch.undo()
    with endpoint("broken") as server:
        assert call(["bench", "serve", server.url]) == 69
        assert "the first request failed (http 500): I am broken" in capfd.readouterr().err
    with endpoint("") as server:
        assert call(["bench", "serve", server.url]) == 69
        assert "name one with --model" in capfd.readouterr().err


def test_an_address_is_read_with_its_base_and_its_port() -> None:
    assert Where.parse("http://h:8000/v1/") == Where("h", 8000)
    assert Where.parse("https://h/openai/v1") == Where("h", 443, True, "/openai")
    assert "sesame" not in repr(Where.parse("h:1", "sesame"))


def test_percentiles_lie_between_what_was_seen() -> None:
    spread = Spread((1.0, 2.0, 3.0, 4.0))
    assert (spread.at(0.0), spread.at(0.5), spread.at(1.0), Spread().at(0.5)) == (1.0, 2.5, 4.0, None)
