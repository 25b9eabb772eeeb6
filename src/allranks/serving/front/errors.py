"""Every refusal and failure in the shape that OpenAI's clients read."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from allranks.errors import first_line
from allranks.serving.front.bodies import KINDS_OF_VALUE


class Inner(BaseModel):
    """What is wrong; ``param`` names the field, ``code`` is for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of every answer that is not 2xx."""

    error: Inner


KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable",
}
DOCUMENTED: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 401, 404, 413, 429, 503)
}
NO_REQUEST = 400


class Refused(Exception):
    """An answer other than 2xx. ``retry`` is after how many seconds it may be tried again, 0 for never."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None, retry: int = 0):
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry = status, message, param, code, retry

    def body(self) -> dict[str, Any]:
        """``{"error": {...}}``."""
        kind = KINDS.get(self.status, "invalid_request_error")
        message = self.message.encode("utf-8", "replace").decode()  # it may quote what no UTF-8 can carry
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        return {"retry-after": str(self.retry)} if self.retry else {}


def answer(refused: Refused) -> JSONResponse:
    """The HTTP answer."""
    return JSONResponse(refused.body(), refused.status, headers=refused.headers())


async def on_refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refused)
    return answer(error)


async def on_invalid(request: Request, error: Exception) -> JSONResponse:
    """Say the first thing that is wrong with a body, by the name of its field."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if tuple(first["loc"]) == ("body",) and first["type"] in ("missing", "model_attributes_type"):
        sent = request.headers.get("content-type", "none")[:60]
        said = f"the body must be a JSON object, sent with Content-Type: application/json; found Content-Type: {sent}"
        return answer(Refused(NO_REQUEST, said))
    place = [str(part) for part in first["loc"] if part not in ("body", "query")]
    if first["type"] == "json_invalid":
        return answer(Refused(NO_REQUEST, f"the body is not JSON: {first.get('ctx', {}).get('error', first['msg'])}"))
    if first["type"] == "extra_forbidden":
        return answer(Refused(NO_REQUEST, f"unknown field {place[-1]!r}", place[-1], "unknown_parameter"))
    named = ".".join(part for part in place if part not in KINDS_OF_VALUE)
    said = str(first["msg"]).removeprefix("Value error, ")
    return answer(Refused(NO_REQUEST, f"{named}: {said}" if named else said, place[0] if place else None))


async def on_http(request: Request, error: Exception) -> JSONResponse:
    """What the framework refuses: unknown paths, wrong methods, bodies that are no text."""
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, Refused):  # by the door, as the framework read the body
        return answer(error.__cause__)
    path, said, headers = request.url.path[:60], str(error.detail), dict(error.headers or {})
    if error.__cause__ is not None:
        coded = request.headers.get("content-encoding", "")[:60]
        why = f"Content-Encoding: {coded} is not understood here" if coded else first_line(error.__cause__)
        said = f"the body is not JSON: {why}"
    if error.status_code == 404:
        served = sorted({str(getattr(route, "path", "")) for route in request.app.routes})
        said = f"nothing is served at {path}; there is {', '.join(served)}"
    if error.status_code == 405:
        here = [route for route in request.app.routes if getattr(route, "path", "") == request.url.path]
        methods = sorted({method for route in here for method in getattr(route, "methods", None) or ()})
        said = f"{request.method} is not served at {path}; allowed is {' or '.join(methods)}"
        headers["allow"] = ", ".join(methods)  # the framework names those of the first route
    response = answer(Refused(error.status_code, said))
    response.headers.update(headers)
    return response


async def on_bug(_: Request, error: Exception) -> JSONResponse:
    """What nobody foresaw; the traceback is in the log of rank 0."""
    return answer(Refused(500, f"the server failed: {type(error).__name__}"))
