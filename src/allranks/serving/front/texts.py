"""From text to tokens and back, also while the tokens are still coming."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from allranks.serving.front.errors import Refused

BROKEN = "\N{REPLACEMENT CHARACTER}"


class Texts:
    """A model's tokenizer and chat template."""

    def __init__(self, folder: str, template: str) -> None:
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        if template:
            self.tokenizer.chat_template = Path(template).read_text(encoding="utf-8")
        self.eos = sorted(_ends(folder) | {self.tokenizer.eos_token_id} - {None})

    def tokens(self, text: str, special: bool = True) -> list[int]:
        """The tokens of a text, with those that the model wants around it if ``special``."""
        return list(self.tokenizer(text, add_special_tokens=special)["input_ids"])

    def text(self, tokens: Sequence[int], special: bool = False) -> str:
        """The text of tokens; ``special`` keeps those that are no text of the model's."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=not special))

    def of_chat(self, messages: list[dict[str, Any]]) -> str:
        """The prompt that the model's template makes of a chat. Raises Refused."""
        from jinja2 import TemplateError

        if not self.tokenizer.chat_template:
            raise Refused(400, "this model has no chat template; use /v1/completions, or serve it with a chat_template")
        try:
            return str(self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            raise Refused(400, f"the model's chat template refuses these messages: {error}", "messages") from error


def _ends(folder: str) -> set[int]:
    """The tokens that end an answer, by the model's generation_config."""
    from transformers import GenerationConfig

    if not (Path(folder) / "generation_config.json").is_file():
        return set()
    said = GenerationConfig.from_pretrained(folder).eos_token_id
    ends = set() if said is None else {said} if isinstance(said, int) else set(said)
    if not all(isinstance(end, int) for end in ends):
        raise ValueError(f"generation_config.json: eos_token_id is {said!r}, and has to be a token's number or several")
    return ends


LONGEST = 8
"""Tokens that are held back at most: no character has more bytes, and those of a broken text never become one."""


class Spoken:
    """The text of an answer as its tokens arrive.

    What may still change is held back: the bytes of half a character, and the beginning of a text to stop at. A token's
    text depends on those before it (leading spaces), so that decoding always begins a little earlier.
    """

    def __init__(self, texts: Texts, stops: Sequence[str]) -> None:
        self._texts, self._stops = texts, stops
        self._tokens: list[int] = []
        self._from = self._read = 0
        self._held = ""
        self.stopped = False

    def add(self, tokens: Sequence[int], last: bool) -> str:
        """What can be said now; ``stopped`` is set once a text to stop at has come."""
        for token in tokens:
            self._tokens.append(token)
            self._hear(whatever=len(self._tokens) - self._read > LONGEST)
        if last:
            self._hear(whatever=True)
        return self._let_go(last)

    def _hear(self, whatever: bool) -> None:
        before = self._texts.text(self._tokens[self._from : self._read])
        now = self._texts.text(self._tokens[self._from :])
        if whatever or (len(now) > len(before) and not now.endswith(BROKEN)):
            self._held += now[len(before) :]
            self._from, self._read = self._read, len(self._tokens)

    def _let_go(self, last: bool) -> str:
        cuts = [cut for stop in self._stops if (cut := self._held.find(stop)) >= 0]
        if cuts:
            self.stopped = True
            return self._held[: min(cuts)]
        keep = 0 if last else max((_overlap(self._held, stop) for stop in self._stops), default=0)
        said, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return said


def _overlap(text: str, stop: str) -> int:
    """How much of the end of ``text`` is a beginning of ``stop``."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
