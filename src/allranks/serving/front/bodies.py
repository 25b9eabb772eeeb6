"""What clients may send: the fields of OpenAI's API that are served here, checked; others are refused, not ignored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("text has no lone surrogate") from error
    return text


def _whole(given: Any) -> Any:
    """To JSON 2.0 is the whole number 2, and so it is to a schema that says ``integer``."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


def _one_of(kinds: Callable[[Any], str], allowed: str) -> Discriminator:
    """Have a value judged by what it looks like, and not by every kind that there is."""
    return Discriminator(kinds, "kind", f"Input should be {allowed}")


def _text_or_list(given: Any) -> str:
    return ONE if isinstance(given, str) else MANY if isinstance(given, list) else ""


def _kind_of_prompt(given: Any) -> str:
    if not isinstance(given, list):
        return _text_or_list(given)
    first = given[0] if given else 0
    return MANY if isinstance(first, str) else LISTS if isinstance(first, list) else IDS


ONE, MANY, IDS, LISTS = KINDS_OF_VALUE = "one text", "texts", "token ids", "lists of token ids"
STOP_AT_FIRST = Field(fail_fast=True)
"""For lists: an error for each of a million elements would take gigabytes, and tens of seconds, to tell one of them."""

Text = Annotated[str, AfterValidator(_encodable)]
WHOLE = BeforeValidator(_whole)
Ids = Annotated[list[Annotated[int, Field(ge=0), WHOLE]], STOP_AT_FIRST]
Prompt = Annotated[
    Annotated[Text, Tag(ONE)]
    | Annotated[list[Text], STOP_AT_FIRST, Tag(MANY)]
    | Annotated[Ids, Tag(IDS)]
    | Annotated[list[Ids], STOP_AT_FIRST, Tag(LISTS)],
    _one_of(_kind_of_prompt, "a text, a list of texts, a list of token ids or a list of such lists"),
]
Stop = Annotated[
    Annotated[Text, Tag(ONE)] | Annotated[list[Text], Field(max_length=16), STOP_AT_FIRST, Tag(MANY)],
    _one_of(_text_or_list, "a text or a list of texts"),
]
Real = Annotated[float, Field(allow_inf_nan=False)]

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "parallel_tool_calls": (None, True, False),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
}
"""Fields of OpenAI's that are not served, with the values at which they ask for nothing."""

OF_NO_EFFECT = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
"""Fields that change no answer."""


class Body(BaseModel):
    """Unknown fields are refused, and so is ``true`` or ``"1"`` for a number: OpenAI's API takes neither."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(Body):
    """``include_usage``: a last chunk counts tokens."""

    include_usage: bool = False


class Sampled(Body):
    """How the answer is drawn. ``max_tokens`` counts new tokens; ``seed`` makes the draw repeatable.

    ``ignore_eos``, which load tests send to servers of this kind, goes on to ``max_tokens`` whatever the model says.
    """

    max_tokens: Annotated[int, Field(ge=1), WHOLE] | None = None
    temperature: Annotated[Real, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Real, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31), WHOLE] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63), WHOLE] | None = None
    stop: Stop | None = None
    ignore_eos: bool = False
    stream: bool = False

    @property
    def stops(self) -> list[str]:
        """Texts at which the answer ends; they are not part of it."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [text for text in given if text]


def _is_one_of(given: Any, values: tuple[Any, ...]) -> bool:
    """To Python 0 is False, but ``logprobs`` 0 asks for something."""
    return any(given == value and isinstance(given, bool) == isinstance(value, bool) for value in values)


class OpenAI(Sampled):
    """What both of OpenAI's requests have."""

    model: Text | None = None
    n: Annotated[int, Field(ge=1), WHOLE] | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _asks_for_what_there_is(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        for name, values in NEUTRAL.items():
            if name in given and not _is_one_of(given[name], values):
                raise ValueError(f"{name} is not served here; leave it out")
        return {name: value for name, value in given.items() if name not in NEUTRAL and name not in OF_NO_EFFECT}


class Completion(OpenAI):
    """POST /v1/completions."""

    prompt: Prompt


class Part(Body):
    """A piece of a message; only text is served."""

    type: Literal["text"]
    text: Text


Content = Annotated[
    Annotated[Text, Tag(ONE)] | Annotated[list[Part], STOP_AT_FIRST, Tag(MANY)],
    _one_of(_text_or_list, "a text or a list of parts"),
]


class ChatMessage(BaseModel):
    """One turn; further fields go to the chat template."""

    model_config = ConfigDict(extra="allow")
    role: Annotated[Text, Field(min_length=1, max_length=64)]
    content: Content | None = None

    def plain(self) -> dict[str, Any]:
        """As chat templates want it: content is one text."""
        content = "".join(part.text for part in self.content) if isinstance(self.content, list) else self.content or ""
        return {**(self.model_extra or {}), "role": self.role, "content": content}


class Chat(OpenAI):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1), STOP_AT_FIRST]
    max_completion_tokens: Annotated[int, Field(ge=1), WHOLE] | None = None


class Generate(Sampled):
    """POST /generate."""

    prompt: Text


class Query(Generate):
    """GET /generate: in an address every value is a text."""

    model_config = ConfigDict(strict=False)


class Tokenize(Body):
    """POST /tokenize."""

    prompt: Text
    add_special_tokens: bool = True


class Detokenize(Body):
    """POST /detokenize."""

    tokens: Ids
