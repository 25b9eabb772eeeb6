"""What the process that speaks HTTP does by itself, without a loop behind it."""

from __future__ import annotations

import gzip
import json
import resource
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from allranks.serving.folder import NotNow, Unfit
from allranks.serving.front import app, process
from allranks.serving.front.link import Link
from allranks.serving.front.metrics import Metrics
from allranks.serving.front.texts import Texts
from allranks.serving.options import Options
from tests.serving.models import save_tokenizer

pytestmark = pytest.mark.torch
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return Texts(str(folder), "")


@pytest.fixture
def link() -> Link:
    link = Link(Options("m"), Metrics(), [2])
    link._on_ready({"context": 512, "vocabulary": 1000})
    return link


@pytest.fixture
def client(link: Link, texts: Texts) -> Iterator[TestClient]:
    with TestClient(app.make(Options("m", body=2**20), link, texts, "")) as client:
        yield client


MANY = 50_000


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("completions", {"prompt": [0] * MANY + [-1]}, f"prompt.{MANY}: Input should be greater than or equal to 0"),
        ("completions", {"prompt": [[]] * MANY + [0]}, f"prompt.{MANY}: Input should be a valid list"),
        ("completions", {"prompt": "a", "stop": [1] * MANY}, "stop.0: Input should be a valid string"),
        ("completions", {"prompt": {}}, "prompt: Input should be a text, a list of texts, a list of token ids or "),
        ("chat/completions", {"messages": [1] * MANY}, "messages.0: Input should be a valid dictionary"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{}] * MANY}]},
            "messages.0.content.0.type: Field required",
        ),
    ],
    ids=["ids", "lists", "stops", "mapping", "messages", "parts"],
)
def test_the_first_of_many_wrong_elements_is_told_and_no_error_is_made_of_the_others(
    client: TestClient, path: str, body: Any, message: str
) -> None:
    tracemalloc.start()
    told = client.post(f"/v1/{path}", content=json.dumps(body, separators=(",", ":")), headers=JSON)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (told.status_code, told.json()["error"]["message"][: len(message)]) == (400, message)
    assert most < 30 * 2**20


def test_a_body_that_tells_no_size_and_is_too_large_is_heard_out_and_refused(client: TestClient) -> None:
    pieces = iter([b'{"prompt":"', *[b"a" * 2**18] * 8, b'"}'])
    told = client.post("/v1/completions", content=pieces, headers=JSON)
    assert (told.status_code, told.json()["error"]["code"]) == (413, "body_too_large")
    assert next(pieces, None) is None


@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        (gzip.compress(b"{}"), {"content-encoding": "gzip"}, "Content-Encoding: gzip is not understood here"),
        (b'{"prompt": ' + b"[" * 100_000, {}, "maximum recursion depth exceeded"),
        (b"1" * 5000, {}, "Exceeds the limit (4300 digits)"),
    ],
    ids=["gzip", "deep", "long"],
)
def test_what_cannot_be_read_as_json_is_told_why(
    client: TestClient, body: bytes, headers: dict[str, str], message: str
) -> None:
    told = client.post("/v1/completions", content=body, headers={**JSON, **headers})
    assert (told.status_code, message in told.json()["error"]["message"]) == (400, True)


@pytest.mark.parametrize("field", ["max_tokens", "n", "seed", "top_k", "prompt"])
def test_a_whole_number_is_what_its_schema_says_and_neither_true_nor_a_text(client: TestClient, field: str) -> None:
    promised = client.get("/openapi.json").json()["components"]["schemas"]["Completion"]["properties"][field]
    kind = promised["oneOf"][2]["items"] if field == "prompt" else promised["anyOf"][0]
    assert (kind["type"], "minimum" in kind) == ("integer", True)
    for value, status in ((True, 400), ("1", 400), (2.5, 400), (2.0, 404), (2, 404)):  # 404: of the model's name
        given = [0, value] if field == "prompt" else value
        told = client.post("/v1/completions", json={"model": "none", "prompt": "a", field: given})
        assert (value, told.status_code) == (value, status), told.text


def test_a_text_is_neither_a_number_nor_a_truth_but_in_an_address(client: TestClient, link: Link) -> None:
    for field, value in (("temperature", "1"), ("temperature", True), ("stream", "true"), ("ignore_eos", 1)):
        assert client.post("/generate", json={"prompt": "a", field: value}).status_code == 400
    link.give_up("a rank is gone")
    asked = "/generate?prompt=a&max_tokens=2&top_k=3&temperature=0.5&ignore_eos=true&stream=1"
    assert client.get(asked).json()["error"]["code"] == "gang_broken"  # nothing else was wrong with it


def test_a_wrong_method_is_told_all_that_are_allowed(client: TestClient) -> None:
    told = client.put("/generate")
    assert (told.status_code, told.headers["allow"]) == (405, "GET, POST")


def test_a_browsers_address_line_may_say_what_a_body_may_and_nothing_else(client: TestClient) -> None:
    for query, message in (("top_p=2", "top_p: "), ("bogus=1", "unknown field 'bogus'"), ("top_k=-2", "top_k: ")):
        told = client.get(f"/generate?prompt=a&{query}")
        assert (told.status_code, told.json()["error"]["message"][: len(message)]) == (400, message)


def test_logprobs_of_no_alternatives_are_asked_for_all_the_same(client: TestClient) -> None:
    told = client.post("/v1/completions", json={"prompt": "a", "logprobs": 0})
    assert (told.status_code, told.json()["error"]["message"]) == (400, "logprobs is not served here; leave it out")


def test_long_texts_are_cut_and_put_together_beside_the_loop(
    texts: Texts, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: dict[str, list[int]] = {"chat": [], "cut": []}

    def noting(name: str, do: Any) -> Any:
        def noted(*given: Any, **more: Any) -> Any:
            where[name].append(threading.get_ident())
            return do(*given, **more)

        return noted

    monkeypatch.setattr(texts, "of_chat", noting("chat", texts.of_chat))
    monkeypatch.setattr(texts, "tokens", noting("cut", texts.tokens))
    monkeypatch.setattr(texts, "text", noting("cut", texts.text))
    with TestClient(app.make(Options("m"), link, texts, "")) as client:
        for word in ("a " * 600, "a " * app.LONG):
            told = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": word}]})
            assert told.json()["error"]["code"] == "context_length_exceeded"
        client.post("/detokenize", json={"tokens": [5] * app.LONG})
    short, long, together = where["cut"]
    assert short == where["chat"][0]
    assert long != where["chat"][1]
    assert together != where["chat"][0]


def test_an_answer_that_its_client_leaves_is_forgotten(link: Link) -> None:
    live = link.submit([[3], [4]], 9, [{}, {}])
    link._on_out({"out": [["r0", [5], False, ""], ["r1", [5], True, ""]]})
    link.stop(live)
    link._on_out({"out": [["r0", [6], True, ""]]})  # it was on its way
    assert [value for name, value in vars(link).items() if isinstance(value, dict)] == [{}, {}], vars(link)
    assert live.open == {}


@pytest.mark.parametrize(("ending", "then"), [(False, "and starts again"), (True, "before it had ended")])
def test_who_waits_for_a_gang_that_breaks_is_told_whether_it_comes_back(link: Link, ending: bool, then: str) -> None:
    live = link.submit([[1]], 9, [{}])
    if ending:
        link._on_drain({})
    link.give_up("a rank is gone")
    assert live.events.get_nowait().error == f"the gang broke, {then}: a rank is gone"


def test_no_token_ends_an_answer_that_is_to_be_as_long_as_was_asked(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(link, "_tell", lambda **message: told.append(message))
    for endless, finish in ((False, "stop"), (True, "length")):
        live = link.submit([[3]], 2, [{}], endless=endless)
        link._on_out({"out": [[told[-1]["id"], [7, 2], True, ""]]})
        assert live.events.get_nowait().finish == finish
    assert [message["eos"] for message in told] == [[2], [-1]]


def test_a_process_that_may_have_too_few_files_for_any_client_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    with pytest.raises(Unfit, match=r"may have 64 open files, and for 32 connections it needs 288; raise it"):
        process._listen(Options("m", port=0))


def test_a_port_that_is_taken_ends_the_first_start_and_is_tried_again_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    monkeypatch.setattr(process, "PORT_WAIT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as holder:
        options = Options("m", port=holder.getsockname()[1])
        said = f"cannot listen on 127.0.0.1:{options.port}: Address already in use; name another host or port"
        for restarts, error in (("0", Unfit), ("1", NotNow)):
            monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
            with pytest.raises(error, match=said):
                process._listen(options)
