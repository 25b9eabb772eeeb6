"""What the process that speaks HTTP does by itself, without a loop behind it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from allranks.serving.front import app
from allranks.serving.front.link import Link
from allranks.serving.front.metrics import Metrics
from allranks.serving.front.texts import Texts
from allranks.serving.options import Options
from tests.serving.models import save_tokenizer

pytestmark = pytest.mark.torch


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
