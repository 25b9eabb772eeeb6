"""What clients see of a service of two ranks: answers, streams, refusals."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

openai = pytest.importorskip("openai")

from allranks.cli.main import call  # noqa: E402
from tests.serving.conftest import KEY  # noqa: E402
from tests.serving.service import Serving, wait  # noqa: E402

pytestmark = [pytest.mark.gang, pytest.mark.torch]
HELD = {"authorization": f"Bearer {KEY}"}
PROMPTS = [f"The statement number {number}, " * (1 + number % 5) for number in range(32)]


@pytest.fixture
def client(service: Serving) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key=KEY, max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def alone(model: Path) -> dict[str, list[int]]:
    """The tokens that the whole model gives, in one process."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    whole, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    settings = GenerationConfig(max_new_tokens=16, do_sample=False, pad_token_id=0, eos_token_id=2)
    found = {}
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        out = whole.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
        found[prompt] = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
    return found


def test_32_clients_that_come_one_after_the_other_get_what_the_whole_model_says(
    client: Any, alone: dict[str, str]
) -> None:
    def ask(number: int) -> tuple[str, str]:
        time.sleep(0.02 * number)
        asked = {"model": "kept", "prompt": PROMPTS[number], "max_tokens": 16, "temperature": 0}
        if number % 2:
            return PROMPTS[number], client.completions.create(**asked).choices[0].text
        chunks = client.completions.create(**asked, stream=True)
        return PROMPTS[number], "".join(chunk.choices[0].text for chunk in chunks)

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        said = dict(pool.map(ask, range(32)))
    assert said == alone


def test_the_openai_client_chats_streams_and_counts(client: Any) -> None:
    asked = {"model": "kept", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "seed": 4}
    whole = client.chat.completions.create(**asked, n=2)
    assert [choice.message.role for choice in whole.choices] == ["assistant", "assistant"]
    assert whole.choices[0].message.content != whole.choices[1].message.content
    assert whole.choices[0].finish_reason in ("length", "stop")
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content  # the seed is the same
    assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + chunks[-1].usage.completion_tokens
    assert [model.id for model in client.models.list()] == ["kept"]


def test_an_answer_ends_at_a_text_to_stop_at(client: Any, alone: dict[str, str]) -> None:
    prompt = PROMPTS[0]
    stop = alone[prompt][4:6]
    asked = {"model": "kept", "prompt": prompt, "max_tokens": 16, "temperature": 0, "stop": stop}
    found = client.completions.create(**asked).choices[0]
    assert found.text == alone[prompt][: alone[prompt].index(stop)]
    assert found.finish_reason == "stop"


def test_simple_clients_ask_by_get_and_tokens_go_there_and_back(service: Serving) -> None:
    status, body = service.ask("/generate?prompt=The%20for&max_tokens=4&temperature=0", **HELD)
    assert (status, body["usage"]["completion_tokens"]) == (200, 4)
    status, body = service.ask("/tokenize", {"prompt": "The for statement"}, **HELD)
    assert service.ask("/detokenize", {"tokens": body["tokens"]}, **HELD) == (200, {"prompt": "The for statement"})


BAD: list[tuple[Any, int, str]] = [
    ({"prompt": ""}, 400, "the prompt is empty"),
    ({"prompt": []}, 400, "the prompt is empty"),
    ({"prompt": "a " * 2000}, 400, "prompt and answer together have at most 512"),
    ({"prompt": "a", "max_tokens": 600}, 400, "and max_tokens 600; prompt and answer together have at most 512"),
    ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens: Input should be greater than or equal to 1"),
    ({"prompt": [999999]}, 400, "a token of the prompt is not below 1000"),
    ({"prompt": "a", "temperature": -1}, 400, "temperature: Input should be greater than or equal to 0"),
    (b'{"prompt": "a", "temperature": NaN}', 400, "temperature: Input should be a finite number"),
    ({"prompt": "a", "top_k": 2**31}, 400, "top_k: Input should be less than 2147483648"),
    ({"prompt": "a", "n": 5}, 400, "n is 5, and this service gives at most 4 answers"),
    ({"prompt": "a", "model": "gpt-9"}, 404, "no model 'gpt-9' is served here; there is 'kept'"),
    ({"prompt": "a", "logprobs": 3}, 400, "logprobs is not served here"),
    ({"prompt": "a", "temprature": 1}, 400, "unknown field 'temprature'"),
    ({"prompt": "\ud800"}, 400, "lone surrogate"),
    ({}, 400, "prompt: Field required"),
    (b"{", 400, "the body is not JSON"),
    (b"\xff\xfe", 400, "body"),
    (b'{"prompt": "' + b"a" * 2_000_000 + b'"}', 413, "the body is larger than 1048576 bytes"),
]


@pytest.mark.parametrize(("body", "status", "message"), BAD, ids=[message for _, _, message in BAD])
def test_bad_input_is_told_in_the_shape_of_openai(service: Serving, body: Any, status: int, message: str) -> None:
    found, told = service.ask("/v1/completions", body, **HELD)
    assert (found, set(told["error"])) == (status, {"message", "type", "param", "code"})
    assert message in told["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/completions", b"[1]", 400, "the body must be a JSON object, sent with Content-Type: application/json"),
        ("/v1/completions", None, 405, "GET is not served at /v1/completions; allowed is POST"),
        ("/v1/embeddings", {"input": "a"}, 404, "nothing is served at /v1/embeddings; there is "),
    ],
)
def test_what_is_asked_in_the_wrong_way_or_place_is_told_the_right_one(
    service: Serving, path: str, body: Any, status: int, message: str
) -> None:
    found, told = service.ask(path, body, **HELD)
    assert (found, told["error"]["message"].startswith(message)) == (status, True)


def test_a_probe_by_head_is_answered_as_by_get_but_for_the_body(service: Serving) -> None:
    for path, status in (("/", 200), ("/health", 200), ("/ready", 200), ("/metrics", 200), ("/v1/models", 401)):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", service.port, timeout=10)) as connection:
            for _ in range(2):  # a body would stand before the second answer
                connection.request("HEAD", path)
                told = connection.getresponse()
                assert (told.status, told.read(), int(told.headers["content-length"]) > 0) == (status, b"", True)


def test_a_body_of_50_mb_is_refused_and_not_kept(service: Serving) -> None:
    status, told = service.ask("/v1/completions", b'{"prompt": "' + b"a" * 50_000_000 + b'"}', **HELD)
    assert (status, told["error"]["code"]) == (413, "body_too_large")
    assert service.ready()


def test_its_own_load_generator_is_answered_streaming_and_not(
    service: Serving, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("A_KEY", KEY)
    words = ["--key-env", "A_KEY", "--requests", "6", "--prompt", "3-20", "--new", "5-9", "-o", "json"]
    words += ["--body", '{"ignore_eos": true}']
    for way in ([], ["--no-stream"], ["--api", "chat"], ["--text"]):
        assert call(["bench", "serve", service.url, "--clients", "3", *words, *way]) == 0
        (row,) = json.loads(capfd.readouterr().out)["rows"]
        assert (row["answers"], row["errors"], row["tokens_counted_by_server"]) == (6, {}, True)
        assert row["prompt_tokens"] >= 6 * 3
        assert 6 * 5 <= row["tokens"] <= 6 * 9


def test_a_wrong_key_is_refused_where_it_counts_and_the_key_is_nowhere_to_be_read(service: Serving) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": KEY}):
        status, body = service.ask("/v1/models", **headers)
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
    assert service.ask("/health")[0] == service.ask("/ready")[0] == 200
    run = Path(service.env["XDG_STATE_HOME"]) / "allranks" / "runs" / "kept"
    for file in (path for path in run.rglob("*") if path.is_file()):
        assert KEY not in file.read_text(errors="replace"), file
    for pid in service.pids().values():
        assert KEY.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_who_leaves_takes_the_request_along(service: Serving) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 500, "stream": True, "temperature": 1, "seed": 3}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(body)}"
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as client:
        client.sendall(f"{head}\r\ncontent-type: application/json\r\n\r\n".encode() + body)
        assert b"200 OK" in client.recv(200)
        wait("the request runs", lambda: service.ask("/health")[1]["running"] == 1)
    began = time.monotonic()
    wait("it runs no more", lambda: service.ask("/health")[1]["running"] == 0, seconds=20)
    assert time.monotonic() - began < 5


def test_more_than_fits_is_refused_at_once_and_may_come_again(service: Serving) -> None:
    def ask(number: int) -> tuple[int, Any]:
        return service.ask("/generate", {"prompt": f"a {number}", "max_tokens": 60, "temperature": 0}, **HELD)

    with concurrent.futures.ThreadPoolExecutor(60) as pool:
        found = list(pool.map(ask, range(60)))
    refused = [body["error"] for status, body in found if status == 429]
    assert len(refused) >= 1
    assert refused[0]["type"] == "rate_limit_error"
    assert sum(status == 200 for status, _ in found) == 60 - len(refused) >= 48
    assert ask(0)[0] == 200


def test_numbers_are_there_for_prometheus(service: Serving) -> None:
    text = service.ask("/metrics")[1]
    for name in ("allranks_generated_tokens_total", "allranks_running", "allranks_time_to_first_token_seconds_bucket"):
        assert f"\n{name}" in text
