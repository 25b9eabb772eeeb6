"""The door of a service on Ray: what a client gets while gangs come and go. Real connections, no Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("fastapi")

from allranks.engines.ray import seats
from allranks.engines.ray.door import Door
from tests.engines.ray.test_seats import TOLD, report

BEGUN = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\n"


@asynccontextmanager
async def host_without_power(says: bytes) -> AsyncIterator[str]:
    """Address of one that answers so much and then nothing, not even that it is gone."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield "{}:{}".format(*server.sockets[0].getsockname())
    server.close()


async def asked(door: Door, said: list[dict[str, Any]]) -> None:
    """Ask without ever hanging up."""

    async def send(message: Any) -> None:
        said.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    scope = {"type": "http", "path": "/generate", "method": "GET", "query_string": b"", "headers": []}
    await door.answer(scope, receive, send)


@pytest.mark.parametrize("says", [b"", BEGUN], ids=["no answer", "half a stream"])
@pytest.mark.parametrize("how", ["its coordinator says so", "another takes its seat", "the service ends"])
def test_a_request_to_a_gang_that_is_lost_ends_though_its_host_says_nothing(
    says: bytes, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, Any]] = []

    async def go() -> None:
        async with host_without_power(says) as address:
            door = Door(TOLD)
            door.join("a")
            door.report("a", report(address=address))
            asking = asyncio.ensure_future(asked(door, said))
            while not door.seats.taken()[0].busy or len(said) < 2 * bool(says):
                await asyncio.sleep(0.01)
            door.report("a", report(address=address))  # as long as it is there, so is the request
            await asyncio.sleep(0.1)
            assert not asking.done()
            if how == "another takes its seat":
                monkeypatch.setattr(seats, "SILENT", -1.0)
                door.join("b")
            elif how == "the service ends":
                door.seats.end()
                door.report("a", report(address=address, lost="its node 0 hung up"))
            else:
                door.report("a", report(address=address, lost="node 0: its host is gone"))
            await asking
            await door._client().close()

    asyncio.run(asyncio.wait_for(go(), 30))
    why = "node 0: its host is gone" if how == "its coordinator says so" else "its coordinator was lost"
    text = b"".join(message.get("body", b"") for message in said).decode()
    if says:
        assert text.endswith("\n\ndata: [DONE]\n\n")
        text = text.split("\n\n")[1].removeprefix("data: ")
    else:
        assert said[0]["status"] == 503
    told = "the service ends" if how == "the service ends" else f"the gang broke, and starts again: {why}"
    assert json.loads(text)["error"]["message"] == told
