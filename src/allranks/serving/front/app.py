"""The paths of the service."""

from __future__ import annotations

import asyncio
import secrets
import time
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from starlette.exceptions import HTTPException

from allranks import __version__
from allranks.serving.front import bodies, errors
from allranks.serving.front.answers import Answer, Choice, Events
from allranks.serving.front.door import Door
from allranks.serving.front.errors import DOCUMENTED, Refused
from allranks.serving.front.link import Link
from allranks.serving.front.metrics import Metrics
from allranks.serving.front.texts import Spoken, Texts
from allranks.serving.options import Options

PAGE = Path(__file__).with_name("page.html")
LONG = 20_000
"""Characters, or tokens, from which a text is cut or put together beside the loop that serves the others."""
SHORT = 16
"""New tokens of a completion that does not say how many, as OpenAI has it."""
CLIENT_GONE = 499


class Service:
    """One model's answers."""

    def __init__(self, options: Options, link: Link, texts: Texts) -> None:
        self.options, self.link, self.texts = options, link, texts
        self.created = int(time.time())

    async def tokens(self, text: str, special: bool = True) -> list[int]:
        """Cut a text, without holding up the others when it is long."""
        if len(text) < LONG:
            return self.texts.tokens(text, special)
        return await asyncio.to_thread(self.texts.tokens, text, special)

    async def text(self, tokens: list[int]) -> str:
        """Put a text together, special tokens and all, likewise."""
        if len(tokens) < LONG:
            return self.texts.text(tokens, special=True)
        return await asyncio.to_thread(self.texts.text, tokens, special=True)

    def must_be_served(self, name: str | None) -> None:
        """Raise Refused for another model."""
        if name is not None and name != self.options.served_name:
            message = f"no model {name[:100]!r} is served here; there is {self.options.served_name!r}"
            raise Refused(404, message, "model", "model_not_found")

    def start(self, prompts: list[list[int]], asked: bodies.Sampled, n: int, limit: int | None, kind: str) -> Answer:
        """Ask the loop for ``n`` answers to each prompt. Raises Refused."""
        self.link.must_be_ready()
        if n > self.options.choices:
            raise Refused(400, f"n is {n}, and this service gives at most {self.options.choices} answers", "n")
        for prompt in prompts:
            self._must_fit(prompt, limit)
        room = self.link.context - max(map(len, prompts))
        sampling = _sampling(asked, n * len(prompts))
        each = [prompt for prompt in prompts for _ in range(n)]
        live = self.link.submit(each, min(limit or room, room), sampling, endless=asked.ignore_eos)
        count = sum(map(len, prompts))
        self.link.metrics.prompt_tokens.inc(count)
        choices = [Choice(Spoken(self.texts, asked.stops)) for _ in each]
        return Answer(self.link, live, choices, self.options.served_name, count, kind)

    def _must_fit(self, prompt: list[int], limit: int | None) -> None:
        context = self.link.context
        if not prompt:
            raise Refused(400, "the prompt is empty", "prompt")
        if any(token >= self.link.vocabulary for token in prompt):
            raise Refused(400, f"a token of the prompt is not below {self.link.vocabulary}", "prompt")
        if len(prompt) + (limit or 1) > context:
            asked = f" and max_tokens {limit}" if limit else ""
            message = f"the prompt has {len(prompt)} tokens{asked}; prompt and answer together have at most {context}"
            raise Refused(400, message, "prompt", "context_length_exceeded")


def _sampling(asked: bodies.Sampled, count: int) -> list[dict[str, Any]]:
    """What the loop is told of each answer; the answers to one prompt differ by their seeds."""
    temperature = 1.0 if asked.temperature is None else float(asked.temperature)
    seed = secrets.randbits(31) if asked.seed is None else asked.seed
    told: dict[str, Any] = {"temperature": temperature, "top_p": float(asked.top_p or 1.0)}
    told["top_k"] = max(asked.top_k or 0, 0)
    return [{**told, "seed": (seed + 7919 * number) & 0x7FFFFFFF} for number in range(count)]


def make(options: Options, link: Link, texts: Texts, key: str) -> FastAPI:
    """The application."""
    app = FastAPI(title="allranks", version=__version__, docs_url=None, redoc_url=None)
    for kind, handler in (
        (Refused, errors.on_refused),
        (RequestValidationError, errors.on_invalid),
        (HTTPException, errors.on_http),
        (Exception, errors.on_bug),
    ):
        app.add_exception_handler(kind, handler)
    service = Service(options, link, texts)
    _add_openai(app, service)
    _add_simple(app, service)
    _add_state(app, service, link.metrics)
    paths = frozenset(str(getattr(route, "path", "")) for route in app.routes)
    app.add_middleware(Door, key=key, most=options.body, metrics=link.metrics, paths=paths)
    return app


async def _answered(answer: Answer, request: Request, stream: bool, usage: bool = False) -> Any:
    if stream:
        return Events(answer, usage)
    if not await answer.whole(request.receive):
        return Response(status_code=CLIENT_GONE)
    return JSONResponse(answer.body())


def _add_openai(app: FastAPI, service: Service) -> None:
    @app.post("/v1/completions", responses=DOCUMENTED)
    async def completions(asked: bodies.Completion, request: Request) -> Any:
        """Answers to one or several prompts, given as text or as tokens."""
        service.must_be_served(asked.model)
        prompts = await _prompts(service, asked.prompt)
        answer = service.start(prompts, asked, asked.n or 1, asked.max_tokens or SHORT, "text_completion")
        return await _answered(answer, request, asked.stream, _wants_usage(asked))

    @app.post("/v1/chat/completions", responses=DOCUMENTED)
    async def chat(asked: bodies.Chat, request: Request) -> Any:
        """The next turn of a chat."""
        service.must_be_served(asked.model)
        text = service.texts.of_chat([message.plain() for message in asked.messages])
        prompt = await service.tokens(text, special=False)  # the template has put them there
        limit = asked.max_completion_tokens or asked.max_tokens
        answer = service.start([prompt], asked, asked.n or 1, limit, "chat.completion")
        return await _answered(answer, request, asked.stream, _wants_usage(asked))

    @app.get("/v1/models", responses=DOCUMENTED)
    async def models() -> dict[str, Any]:
        """The one model that is served here."""
        model = {"id": service.options.served_name, "object": "model", "created": service.created}
        owned = {"owned_by": "allranks", "max_model_len": service.link.context}
        return {"object": "list", "data": [{**model, **owned}]}


async def _prompts(service: Service, given: Any) -> list[list[int]]:
    if isinstance(given, str):
        return [await service.tokens(given)]
    if not given:
        raise Refused(400, "the prompt is empty", "prompt")
    if isinstance(given[0], int):
        return [given]
    if len(given) > service.options.choices:
        message = f"{len(given)} prompts in one request, and this service takes at most {service.options.choices}"
        raise Refused(400, message, "prompt")
    return [await service.tokens(one) if isinstance(one, str) else one for one in given]


def _wants_usage(asked: bodies.OpenAI) -> bool:
    return bool(asked.stream_options and asked.stream_options.include_usage)


def _add_simple(app: FastAPI, service: Service) -> None:
    async def generate(asked: bodies.Generate, request: Request) -> Any:
        prompt = await service.tokens(asked.prompt)
        answer = service.start([prompt], asked, 1, asked.max_tokens, "text_completion")
        if asked.stream:
            return Events(answer, usage=False)
        if not await answer.whole(request.receive):
            return Response(status_code=CLIENT_GONE)
        (choice,) = answer.choices
        return JSONResponse({"text": choice.text, "finish_reason": choice.finish, "usage": answer.usage()})

    @app.post("/generate", responses=DOCUMENTED)
    async def post_generate(asked: bodies.Generate, request: Request) -> Any:
        """What follows a text."""
        return await generate(asked, request)

    @app.get("/generate", responses=DOCUMENTED)
    async def get_generate(asked: Annotated[bodies.Query, Query()], request: Request) -> Any:
        """The same from a browser's address line."""
        return await generate(asked, request)

    @app.post("/tokenize", responses=DOCUMENTED)
    async def tokenize(asked: bodies.Tokenize) -> dict[str, Any]:
        """The tokens of a text."""
        tokens = await service.tokens(asked.prompt, asked.add_special_tokens)
        return {"tokens": tokens, "count": len(tokens), "max_model_len": service.link.context}

    @app.post("/detokenize", responses=DOCUMENTED)
    async def detokenize(asked: bodies.Detokenize) -> dict[str, Any]:
        """The text of tokens."""
        if any(token >= max(service.link.vocabulary, len(service.texts.tokenizer)) for token in asked.tokens):
            raise Refused(400, "a token is not in the vocabulary", "tokens")
        return {"prompt": await service.text(asked.tokens)}


def _add_state(app: FastAPI, service: Service, metrics: Metrics) -> None:
    link = service.link

    def state() -> dict[str, Any]:
        news = link.news
        return {
            "state": "broken" if link.broken else link.state,
            "reason": link.unhealthy() or link.text,
            "model": service.options.served_name,
            **{name: news.get(name, 0) for name in ("steps", "running", "waiting", "cache")},
        }

    @app.get("/health", responses={503: {}})
    async def health() -> Any:
        """200 while the loop moves, or is not yet meant to."""
        return JSONResponse(state(), 503 if link.unhealthy() else 200)

    @app.get("/ready", responses={503: {}})
    async def ready() -> Any:
        """200 while requests are taken."""
        return JSONResponse(state(), 200 if link.ready and not link.unhealthy() else 503)

    @app.get("/metrics")
    async def numbers() -> Response:
        """For Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        """A page to chat with the model."""
        return FileResponse(PAGE, media_type="text/html")
