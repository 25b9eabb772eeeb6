"""Stands in for the API server that agents ask, over HTTP."""

from __future__ import annotations

import http.client
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from allranks.node.account import Account


class Server(ThreadingHTTPServer):
    """An API server that knows some pods and one ConfigMap, and remembers what it was asked."""

    pods: list[dict[str, Any]]
    asked: list[tuple[str, str, Any]]
    kept: dict[str, str]
    code = 200


class Handler(BaseHTTPRequestHandler):
    server: Server

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        assert self.headers["Authorization"] == "Bearer token"
        self.server.asked.append((self.command, self.path, body))
        found: dict[str, Any] = {"items": self.server.pods} if self.command == "GET" else {}
        if "/configmaps/" in self.path:
            self.server.kept.update((body or {}).get("data", {}) if self.server.code == 200 else {})
            found = {"data": self.server.kept}
        text = json.dumps(found if self.server.code == 200 else {"message": "no right to do that"}).encode()
        self.send_response(self.server.code)
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_PATCH = do_DELETE = answer

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


class Plain(Account):
    """The same without TLS."""

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._host, int(self._port), timeout=20)
