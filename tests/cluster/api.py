"""One request at a time to the API server, as the admin: cheaper than a kubectl when there are many."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from typing import Any

from tests.cluster.errors import ClusterError
from tests.cluster.layout import API, PKI


class ApiError(ClusterError):
    """The API server refused; ``code`` is the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Api:
    """With the admin's certificate of this boot."""

    def __init__(self) -> None:
        self._context = ssl.create_default_context(cafile=str(PKI / "ca.crt"))
        self._context.load_cert_chain(PKI / "admin.crt", PKI / "admin.key")

    def call(self, path: str, body: Any = None, method: str | None = None, kind: str = "application/json") -> Any:
        """What the server answers: an object if it is JSON, else text. ``kind`` is the body's content type."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(API + path, data=data, headers={"Content-Type": kind}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._context) as answer:
                text = answer.read().decode()
                return json.loads(text) if "json" in answer.headers.get("Content-Type", "") else text
        except urllib.error.HTTPError as error:
            with error:
                said = error.read().decode(errors="replace")
            raise ApiError(error.code, f"{request.get_method()} {path}: {error.code} {said[:2000]}") from error

    def merge(self, path: str, body: Any) -> Any:
        """A JSON merge patch."""
        return self.call(path, body, "PATCH", "application/merge-patch+json")
