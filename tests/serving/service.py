"""A service under test: started by the command line, asked over HTTP, ended whatever happens."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.gangs.gang import CLI, eventually

START = 240.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Serving:
    """A running service: its address, and ways to ask it."""

    def __init__(self, name: str, port: int, env: dict[str, str]) -> None:
        self.name, self.port, self.env = name, port, env
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and body, read as JSON where it is; bytes are sent as they are."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json", **headers})
        try:
            with DIRECT.open(request, timeout=60) as answer:
                return answer.status, _read(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, _read(error.read())

    def state(self) -> str:
        """What /health says, or how it fails."""
        try:
            status, body = self.ask("/health")
        except (OSError, http.client.HTTPException) as error:
            return type(getattr(error, "reason", error)).__name__
        return "healthy" if status == 200 and body["state"] == "ready" else f"{status} {body['state']}"

    def ready(self) -> bool:
        try:
            return self.ask("/ready")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def ranks(self) -> dict[int, int | None]:
        """Pid of each rank, as far as it is told."""
        status = json.loads(self.cli("status", self.name, "-o", "json").stdout)
        return {rank["rank"]: rank["pid"] for node in status["nodes"] for rank in node["ranks"]}

    def pids(self) -> dict[int, int]:
        """Pid of each rank, awaited: a gang may answer before each of its agents has told of its ranks."""
        wait("the pids of all ranks", lambda: all(self.ranks().values()))
        return {rank: pid for rank, pid in self.ranks().items() if pid is not None}

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*CLI, *words], env=self.env, capture_output=True, text=True, timeout=START)


def _read(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode()


def port_of_nobody() -> int:
    """A free one that the kernel gives nobody who asks for any, as Ray does hundreds of times before it is used."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", random.randrange(20000, 30000)))
            return int(probe.getsockname()[1])


wait = partial(eventually, seconds=60.0)
"""As ``eventually``, for what takes a model a while."""


@contextlib.contextmanager
def serving(
    folder: Path, model: Path, name: str, extra: str = "", engine: str = "local", ranks: int = 2, **env: str
) -> Iterator[Serving]:
    """Serve ``model`` with two ranks until the context is left; ``extra`` is more of the spec.

    A Python file in place of a model is a server of the test's own, behind Ray's; it is told its port.
    """
    port, behind = port_of_nobody(), port_of_nobody()
    spec = folder / f"{name}.yaml"
    ours = f"model: {model}\nport: {port}\n"
    own = f"run: python {model} {behind}\nport: {behind}\nengines: {{ray: {{port: {port}}}}}\n"
    source = own if model.suffix == ".py" else ours
    spec.write_text(f"kind: Service\nname: {name}\nranks_per_node: {ranks}\n{source}{extra}")
    state = {"XDG_STATE_HOME": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "cache")}
    surroundings = {**os.environ, **state, **env}
    surroundings.pop("PYTHONDONTWRITEBYTECODE", None)  # else every service compiles torch's modules anew
    service = Serving(name, port, surroundings)
    try:
        done = service.cli("serve", str(spec), "--engine", engine, "--detach")
        assert done.returncode == 0, done.stderr + service.cli("logs", name).stdout
        assert done.stdout.strip() == service.url
        yield service
    finally:
        service.cli("cancel", name)
