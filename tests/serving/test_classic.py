"""Why the ranks of a model are not replicas behind a balancer."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from allranks.node.listen import free_port
from tests.serving.conftest import KEY
from tests.serving.service import DIRECT, Serving, wait

pytestmark = [pytest.mark.gang, pytest.mark.torch]
ASKED = {"prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0}


@contextlib.contextmanager
def classic(model: Path, how: str) -> Iterator[str]:
    """The usual design with two ranks, once all its replicas are healthy."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([sys.executable, "-m", "tests.serving.classic", str(model), str(port), "2", how])
    try:
        wait("its replicas are healthy", lambda: healthy(url), seconds=120)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def healthy(url: str) -> bool:
    try:
        with DIRECT.open(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def ask(url: str, timeout: float) -> int:
    """How many tokens came. Raises TimeoutError."""
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(ASKED).encode())
    with DIRECT.open(request, timeout=timeout) as answer:
        return int(json.load(answer)["usage"]["completion_tokens"])


def test_one_request_to_one_replica_a_rank_is_never_answered_and_to_a_gang_it_is(service: Serving, model: Path) -> None:
    with classic(model, "all") as url:  # every request twice: so it works, and this is how long it takes
        began = time.monotonic()
        assert ask(url, 120) == 4
        took = time.monotonic() - began
    with classic(model, "each") as url:
        with pytest.raises((TimeoutError, urllib.error.URLError)):
            ask(url, max(10.0, 4 * took))
        assert healthy(url)  # and says that all is well
    began = time.monotonic()
    status, body = service.ask("/v1/completions", ASKED, authorization=f"Bearer {KEY}")
    assert (status, body["usage"]["completion_tokens"]) == (200, 4)
    assert time.monotonic() - began < max(10.0, 4 * took)
