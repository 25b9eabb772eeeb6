"""What is asked: random prompts of given lengths, the same again for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from allranks.bench.load.ask import Wish

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
WORDS = [
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on",
    "not", "he", "his", "but", "at", "are", "this", "have", "from", "or", "had", "an",
]  # fmt: skip
"""Each one token, with the space before it, in the vocabularies of the usual models."""


@dataclass(frozen=True)
class Wanted:
    """``prompt`` and ``new`` are the fewest and the most tokens; each length between is as likely.

    A completion's prompt is tokens drawn below ``vocabulary``, unless ``text``; a chat's is that many common words.
    ``extra`` goes into each body, and what is None there is left out of it.
    """

    model: str
    api: str = "completions"
    prompt: tuple[int, int] = (128, 128)
    new: tuple[int, int] = (128, 128)
    vocabulary: int = 900
    text: bool = False
    stream: bool = True
    seed: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def wishes(self) -> Iterator[Wish]:
        """Yield requests without end."""
        draw = random.Random(self.seed)
        while True:
            yield Wish(PATHS[self.api], self._body(draw))

    def _body(self, draw: random.Random) -> dict[str, Any]:
        length = draw.randint(*self.prompt)
        body: dict[str, Any] = {"model": self.model, "max_tokens": draw.randint(*self.new), "temperature": 0}
        if self.api == "chat":
            body["messages"] = [{"role": "user", "content": " ".join(draw.choices(WORDS, k=length))}]
        elif self.text:
            body["prompt"] = " ".join(draw.choices(WORDS, k=length))
        else:
            body["prompt"] = [draw.randrange(3, self.vocabulary) for _ in range(length)]
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return {name: value for name, value in {**body, **self.extra}.items() if value is not None}
