"""What clients may send: the fields of OpenAI's API that are served here, checked; others are refused, not ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("text has no lone surrogate") from error
    return text


Text = Annotated[str, AfterValidator(_encodable)]
Ids = list[Annotated[int, Field(ge=0)]]
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
    """Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class StreamOptions(Body):
    """``include_usage``: a last chunk counts tokens."""

    include_usage: bool = False


class Sampled(Body):
    """How the answer is drawn. ``max_tokens`` counts new tokens; ``seed`` makes the draw repeatable.

    ``ignore_eos``, which load tests send to servers of this kind, goes on to ``max_tokens`` whatever the model says.
    """

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[Real, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Real, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Text | Annotated[list[Text], Field(max_length=16)] | None = None
    ignore_eos: bool = False
    stream: bool = False

    @property
    def stops(self) -> list[str]:
        """Texts at which the answer ends; they are not part of it."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [text for text in given if text]


class OpenAI(Sampled):
    """What both of OpenAI's requests have."""

    model: Text | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _asks_for_what_there_is(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        for name, values in NEUTRAL.items():
            if name in given and given[name] not in values:
                raise ValueError(f"{name} is not served here; leave it out")
        return {name: value for name, value in given.items() if name not in NEUTRAL and name not in OF_NO_EFFECT}


class Completion(OpenAI):
    """POST /v1/completions."""

    prompt: Text | list[Text] | Ids | list[Ids]


class Part(Body):
    """A piece of a message; only text is served."""

    type: Literal["text"]
    text: Text


class ChatMessage(BaseModel):
    """One turn; further fields go to the chat template."""

    model_config = ConfigDict(extra="allow")
    role: Annotated[Text, Field(min_length=1, max_length=64)]
    content: Text | list[Part] | None = None

    def plain(self) -> dict[str, Any]:
        """As chat templates want it: content is one text."""
        content = "".join(part.text for part in self.content) if isinstance(self.content, list) else self.content or ""
        return {**(self.model_extra or {}), "role": self.role, "content": content}


class Chat(OpenAI):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None


class Generate(Sampled):
    """POST /generate."""

    prompt: Text


class Tokenize(Body):
    """POST /tokenize."""

    prompt: Text
    add_special_tokens: bool = True


class Detokenize(Body):
    """POST /detokenize."""

    tokens: Ids
