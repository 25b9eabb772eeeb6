"""The agents' port takes only members of the run, and survives everybody else."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allranks.node import wire
from allranks.node.listen import Listener
from tests.node.gangs import make_gang

SECRET = b"correct horse"


def hello(node: int, nodes: int, **more: Any) -> dict[str, Any]:
    return {
        "type": "hello", "run": "g", "nodes": nodes, "ranks_per_node": 2, "version": "1", "node": node,
        "incarnation": f"i{node}", "host": f"h{node}", "attempt": -1, "used": 0, "ready": False, **more,
    }  # fmt: skip


async def no_launcher() -> None:
    """Nothing to wait for at the end."""


@asynccontextmanager
async def listening(state: Path, **changes: Any) -> AsyncIterator[tuple[Listener, int]]:
    sock = socket.create_server(("127.0.0.1", 0), backlog=1024)
    port = sock.getsockname()[1]
    listener = Listener(make_gang(state=str(state), port=port, **changes), SECRET, sock, no_launcher)
    task = asyncio.ensure_future(listener.run())
    await asyncio.sleep(0)
    try:
        yield listener, port
    finally:
        listener.coordinator.cancel("the test is over", 143)
        await asyncio.wait_for(task, 10)


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(main(), 30)

    asyncio.run(bounded())


async def join(port: int, node: int, nodes: int = 2, **more: Any) -> wire.Wire:
    line = await wire.dial("127.0.0.1", port, SECRET)
    line.send(**hello(node, nodes, **more))
    return line


def test_a_member_is_seated(tmp_path: Path) -> None:
    async def main() -> None:
        async with listening(tmp_path) as (listener, port):
            line = await join(port, 1)
            assert await line.receive() == {"type": "welcome"}
            assert listener.coordinator.roll.missing == [0]
            line.send(type="beat", sent=4.5)
            assert await line.receive() == {"type": "beat", "sent": 4.5}
            line.close()

    run(main)


def test_a_wrong_secret_is_refused_and_learns_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with listening(tmp_path) as (listener, port):
            with pytest.raises(wire.WireError, match="does not know this run's secret"):
                await wire.dial("127.0.0.1", port, b"guess")
            assert listener.coordinator.roll.members == {}

    run(main)


def test_an_impostor_of_the_coordinator_is_found_out() -> None:
    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(json.dumps({"allranks": 1, "nonce": "0" * 32}).encode() + b"\n")
        await reader.readline()
        writer.write(json.dumps({"code": "0" * 32}).encode() + b"\n")
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(impostor, "127.0.0.1", 0)
        with pytest.raises(wire.WireError, match="does not know this run's secret"):
            await wire.dial("127.0.0.1", server.sockets[0].getsockname()[1], SECRET)
        server.close()

    run(main)


def test_another_protocol_version_is_refused_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with listening(tmp_path) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await reader.readline()
            writer.write(json.dumps({"allranks": 2, "nonce": "0" * 32, "code": ""}).encode() + b"\n")
            answer = json.loads(await reader.readline())
            assert answer == {"refused": "the peer speaks protocol 2, this is protocol 1"}
            writer.close()

    run(main)


def test_a_member_of_another_size_is_told_what_differs(tmp_path: Path) -> None:
    async def main() -> None:
        async with listening(tmp_path) as (listener, port):
            line = await join(port, 1, nodes=3)
            answer = await line.receive()
            assert answer == {"type": "refused", "why": "another gang or another version: nodes is 3, here 2"}
            assert listener.coordinator.refusals == {"h1 (127.0.0.1)": answer["why"]}
            line.close()

    run(main)


def test_a_second_holder_of_a_number_is_told_to_wait(tmp_path: Path) -> None:
    async def main() -> None:
        async with listening(tmp_path) as (_, port):
            first = await join(port, 1)
            assert await first.receive() == {"type": "welcome"}
            second = await join(port, 1, incarnation="other")
            answer = await second.receive()
            assert answer
            assert answer["type"] == "wait"
            second.send(type="beat", sent=1)
            first.send(type="beat", sent=2)
            assert await first.receive() == {"type": "beat", "sent": 2}
            first.close()
            second.close()

    run(main)


def test_a_repeated_or_forged_line_ends_that_connection_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with listening(tmp_path) as (listener, port):
            good, bad = await join(port, 0), await join(port, 1)
            assert await good.receive() == await bad.receive() == {"type": "welcome"}
            bad._sent = 0
            bad.send(type="beat", sent=1)
            assert await bad.receive() is None
            good.send(type="beat", sent=2)
            assert await good.receive() == {"type": "beat", "sent": 2}
            assert listener.coordinator.roll.missing == [1]
            good.close()
            bad.close()

    run(main)


@pytest.mark.parametrize("kind", ["hello", "nonsense", "started", "exit", "idle", "ready", "note", "listening", "bye"])
@pytest.mark.parametrize("fields", [{}, {"attempt": "x", "death": 3, "pids": [], "ready": [], "text": 1, "why": {}}])
def test_a_malformed_message_of_a_member_does_not_stop_the_coordinator(
    tmp_path: Path, kind: str, fields: dict[str, Any]
) -> None:
    async def main() -> None:
        async with listening(tmp_path) as (_, port):
            bad, good = await join(port, 1), await join(port, 0)
            assert await good.receive() == {"type": "welcome"}
            bad.send(type=kind, **fields)
            good.send(type="beat", sent=2)
            assert await good.receive() == {"type": "beat", "sent": 2}
            bad.close()
            good.close()

    run(main)


HANDSHAKES = st.dictionaries(
    st.sampled_from(["allranks", "nonce", "code"]), st.one_of(st.none(), st.integers(), st.text())
)
GARBAGE = st.one_of(
    st.binary(max_size=300),
    st.sampled_from([b"\n", b"{}\n", b"[" * 5000 + b"\n", b"GET / HTTP/1.1\r\n\r\n", b"\xff\n", b"A" * 200_000]),
    HANDSHAKES.map(lambda fields: json.dumps(fields).encode() + b"\n"),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(GARBAGE, max_size=6))
def test_garbage_on_the_port_changes_nothing(tmp_path: Path, chunks: list[bytes]) -> None:
    async def main() -> None:
        async with listening(tmp_path) as (listener, port):
            _, stranger = await asyncio.open_connection("127.0.0.1", port)
            try:
                for chunk in chunks:
                    stranger.write(chunk)
                await stranger.drain()
            except ConnectionError:
                pass
            line = await join(port, 1)
            assert await line.receive() == {"type": "welcome"}
            assert listener.coordinator.roll.missing == [0]
            stranger.close()
            line.close()

    run(main)


def test_strangers_that_say_nothing_do_not_keep_members_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with listening(tmp_path) as (_, port):
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
            started = time.monotonic()
            while True:
                try:
                    line = await join(port, 1)
                    break
                except (wire.WireError, OSError):
                    await asyncio.sleep(0.2)
            assert await line.receive() == {"type": "welcome"}
            assert time.monotonic() - started < wire.HANDSHAKE_TIMEOUT + 2
            for _, writer in idle:
                writer.close()
            line.close()

    run(main)


async def _join_at_last(port: int, node: int, nodes: int) -> wire.Wire:
    """Dial again as an agent does: on a busy machine a handshake may take too long."""
    while True:
        try:
            return await join(port, node, nodes, ready=True)
        except wire.WireError:
            await asyncio.sleep(0.2)


async def _dial_many(port: int, nodes: int) -> None:
    lines = await asyncio.gather(*(_join_at_last(port, node, nodes) for node in range(nodes)))
    for line in lines:
        assert await line.receive() == {"type": "welcome"}
    start = await lines[0].receive()
    assert start
    assert start["type"] == "start"
    for line in lines:
        line.close()


def _many_agents(port: int, nodes: int) -> None:
    asyncio.run(_dial_many(port, nodes))


def test_a_thousand_agents_join_by_less_than_two_seconds_of_work(tmp_path: Path) -> None:
    """Real sockets; the agents share one other process. Processor time of ours: a busy machine makes it no longer."""

    async def once(state: Path) -> float:
        state.mkdir()
        async with listening(state, nodes=1000) as (listener, port):
            began, worked = time.monotonic(), time.process_time()
            agents = multiprocessing.get_context("fork").Process(target=_many_agents, args=(port, 1000))
            agents.start()
            while listener.coordinator.last_attempt < 0 and time.monotonic() < began + 60:
                await asyncio.sleep(0.01)
            taken = time.process_time() - worked
            await asyncio.get_running_loop().run_in_executor(None, agents.join, 20)
            assert agents.exitcode == 0
            return taken

    assert asyncio.run(once(tmp_path / "state")) < 2.0
