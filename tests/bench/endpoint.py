"""A real HTTP server that speaks OpenAI's API as well, or as badly, as the model's name says."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FIRST, EACH, WORDS = 0.2, 0.05, 4
"""Seconds to the first word and between words."""
REFUSALS = {"busy": 429, "broken": 500}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Endpoint

    def do_GET(self) -> None:
        if self.server.model == "stalls":
            self.send_response(200)
            self.send_header("content-length", "1000")
            self.end_headers()
            time.sleep(600)
        self._answer(200, {"data": [{"id": self.server.model}]} if self.server.model else {"data": []})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append({**body, "key": self.headers.get("authorization")})
        self.server.came.append(time.monotonic())
        how = body["model"]
        if how in REFUSALS:
            self._answer(REFUSALS[how], {"error": {"message": f"I am {how}"}})
        elif how == "page":
            self._raw(200, b"<html>hello</html>", "text/html")
        elif not body.get("stream"):
            usage = {"prompt_tokens": 2, "completion_tokens": WORDS}
            self._answer(200, {"choices": [{"text": "a b", "finish_reason": "length"}], "usage": usage})
        else:
            self._stream(how)

    def _stream(self, how: str) -> None:
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        time.sleep(600 if how == "silent" else FIRST)
        for number in range(WORDS):
            if number == 2 and how == "cut":
                self.close_connection = True
                return
            if number == 2 and how == "fails":
                self._event({"error": {"message": "the gang broke"}})
                break
            if number == 2 and how == "polite":  # the HTTP is whole, the answer is not
                self._chunk(b"")
                return
            if number == 2 and how == "odd":
                self._event({"choices": [], "usage": {"tokens": 3}})
            self._event({"choices": [{"text": f"word{number} ", "finish_reason": None}]})
            time.sleep(EACH)
        else:
            self._event({"choices": [{"text": "", "finish_reason": "length"}]})
        if how != "uncounted":
            self._event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": WORDS + 1}})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, value: Any) -> None:
        self._chunk(f"data: {json.dumps(value)}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _answer(self, status: int, value: Any) -> None:
        self._raw(status, json.dumps(value).encode(), "application/json")

    def _raw(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


class Endpoint(ThreadingHTTPServer):
    """``model`` is what it lists; ``bodies`` what it was asked, and ``came`` when."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, model: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.model = model
        self.bodies: list[dict[str, Any]] = []
        self.came: list[float] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


@contextlib.contextmanager
def endpoint(model: str = "well") -> Iterator[Endpoint]:
    with Endpoint(model) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
            server.block_on_close = False  # who never answers is not waited for
