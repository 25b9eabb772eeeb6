"""A sharded model as it is usually put behind HTTP: one replica a rank, and a load balancer that picks one of them.

``python -m tests.serving.classic MODEL PORT RANKS each|all``. A replica is healthy once it has imported what it needs;
it joins the others, and loads its piece, within its first request. With ``all`` the balancer helps: it sends every
request to all replicas, one request after the other, which is the only way in which this design can answer.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from allranks.node.listen import free_port

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Handler(BaseHTTPRequestHandler):
    """GET is health; POST is /v1/completions with a prompt of token ids, answered whole."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "classic"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self._answer(self.server.complete(body))

    def _answer(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None: ...


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError


class Replica(Server):
    """One rank."""

    def __init__(self, folder: str, port: int) -> None:
        super().__init__(port)
        self._folder, self._lock = folder, threading.Lock()
        self._model: Any = None

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        import torch
        from transformers import GenerationConfig

        with self._lock:
            if self._model is None:
                self._model = self._join()
            prompt, new = body["prompt"], body["max_tokens"]
            settings = GenerationConfig(max_new_tokens=new, do_sample=False, pad_token_id=0, eos_token_id=None)
            given = torch.tensor([prompt])
            with torch.inference_mode():
                found = self._model.generate(given, attention_mask=torch.ones_like(given), generation_config=settings)
        tokens = found[0, len(prompt) :].tolist()
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
        return {"choices": [{"text": " ".join(map(str, tokens)), "finish_reason": "length"}], "usage": usage}

    def _join(self) -> Any:
        import torch
        import torch.distributed as dist

        from allranks.serving import shard

        dist.init_process_group("gloo")  # with torch's own timeouts, as it is usually written
        model = shard.load(self._folder, "transformers", torch.float32, torch.device("cpu"))
        model.generation_config.eos_token_id = None
        return model


class Balancer(Server):
    """In front of the replicas."""

    def __init__(self, port: int, replicas: list[int], to_all: bool) -> None:
        super().__init__(port)
        self._replicas, self._turns = replicas, itertools.cycle(replicas)
        self._pool = concurrent.futures.ThreadPoolExecutor(len(replicas)) if to_all else None
        self._lock = threading.Lock()

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        if self._pool is None:
            return _ask(next(self._turns), body)
        with self._lock:  # in the same order everywhere: else their collectives meet in another one
            return next(iter(self._pool.map(_ask, self._replicas, itertools.repeat(body))))


def _ask(port: int, body: Any = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    with DIRECT.open(urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", data), timeout=600) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def serve(folder: str, port: int, ranks: int, to_all: bool) -> None:
    """Start the replicas, wait until they are healthy, and balance until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    ports = [free_port() for _ in range(ranks)]
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with contextlib.ExitStack() as stack:
        for rank, one in enumerate(ports):
            command = [sys.executable, "-m", "tests.serving.classic", folder, str(one)]
            process = subprocess.Popen(command, env={**os.environ, **shared, "RANK": str(rank)})
            stack.callback(process.wait)
            stack.callback(process.kill)
        for one in ports:
            _until_healthy(one)
        Balancer(port, ports, to_all).serve_forever()


def _until_healthy(port: int) -> None:
    until = time.monotonic() + 120
    while True:
        try:
            _ask(port)
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def main() -> None:
    folder, port, *more = sys.argv[1:]
    if more:
        serve(folder, int(port), int(more[0]), to_all=more[1:] == ["all"])
    else:
        import torch
        import transformers  # noqa: F401 - what makes the first request slow is not what is shown here

        torch.set_num_threads(1)
        Replica(folder, int(port)).serve_forever()


if __name__ == "__main__":
    main()
