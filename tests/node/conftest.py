"""What tests of agents in a cluster need of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks.node.account import Account
from tests.node.api import Handler, Plain, Server


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server(("127.0.0.1", 0), Handler)
    found.pods, found.asked, found.kept = [], [], {}
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield found
    finally:
        found.shutdown()
        thread.join()
        found.server_close()


@pytest.fixture
def account(server: Server, tmp_path: Path) -> Account:
    for name, text in (("token", "token\n"), ("namespace", "team")):
        (tmp_path / name).write_text(text)
    where = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.server_address[1])}
    return Plain(str(tmp_path), where)
