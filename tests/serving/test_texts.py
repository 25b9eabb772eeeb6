"""Text that is said while its tokens come is the text of them all."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from allranks.serving.front.texts import Spoken, Texts
from tests.serving.models import save_tokenizer

pytestmark = pytest.mark.torch
SENTENCES = ['The "if" statement', "Grüße, 世界 \N{SNOWMAN}\N{ROCKET} e\u0301", "  two  spaces\n\n\ttab", "a"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return Texts(str(folder), "")


def pieces(texts: Texts, text: str, stops: list[str]) -> tuple[list[str], bool]:
    spoken, tokens, said = Spoken(texts, stops), texts.tokens(text), []
    for number, token in enumerate(tokens):
        said.append(spoken.add([token], last=number == len(tokens) - 1))
        if spoken.stopped:
            break
    return said, spoken.stopped


@pytest.mark.parametrize("text", SENTENCES)
def test_pieces_make_up_the_whole_and_no_character_comes_in_halves(texts: Texts, text: str) -> None:
    said, _ = pieces(texts, text, [])
    assert "".join(said) == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in said)


def test_tokens_that_make_no_text_do_not_hold_back_what_follows_for_long(texts: Texts) -> None:
    half = texts.tokens("\N{ROCKET}")[:1]
    spoken = Spoken(texts, [])
    assert "".join(spoken.add(half, last=False) for _ in range(30)).count("\N{REPLACEMENT CHARACTER}") > 15
    assert "after" in spoken.add(texts.tokens(" after"), last=True)


def test_an_answer_ends_before_a_text_to_stop_at_also_when_tokens_cut_it(texts: Texts) -> None:
    assert pieces(texts, "one two three four", ["o thr", "never"])[1]
    assert "".join(pieces(texts, "one two three four", ["ee fo", "never"])[0]) == "one two thr"
    assert "".join(pieces(texts, "one two three four", ["four!"])[0]) == "one two three four"


def test_a_chat_becomes_a_prompt_and_what_a_template_refuses_is_told(texts: Texts) -> None:
    from allranks.serving.front.errors import Refused

    assert texts.of_chat([{"role": "user", "content": "hi"}]) == "hi\n"
    texts.tokenizer.chat_template = "{{ raise_exception('only users') }}"
    with pytest.raises(Refused, match="only users"):
        texts.of_chat([{"role": "user", "content": "hi"}])
    texts.tokenizer.chat_template = None
    with pytest.raises(Refused, match="no chat template"):
        texts.of_chat([{"role": "user", "content": "hi"}])
