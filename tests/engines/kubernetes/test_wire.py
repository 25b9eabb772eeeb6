"""What stands where an API server should be, and credentials that cannot be used: one sentence each, exit code 69."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from allranks.cli.main import call
from allranks.engines.kubernetes import client, exec
from allranks.engines.kubernetes.kubeconfig import Access
from allranks.engines.kubernetes.wire import KEEPALIVE
from tests.engines.kubernetes.servers import OVER, answering, certificate, kubeconfig

LIST = (b'{"items": []}', "application/json")


class Asked:
    """``allranks list`` with some kubeconfig; the one sentence that it says."""

    def __init__(self, path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.path, self._capfd = path, capfd

    def __call__(self, server: str, cluster: dict[str, Any] | None = None, **user: Any) -> str:
        kubeconfig(self.path, server, cluster, **user)
        return self.said()

    def said(self, code: int = 69) -> str:
        client.connect.cache_clear()
        client._why_not.cache_clear()
        assert call(["list"]) == code
        (line,) = self._capfd.readouterr().err.splitlines()
        return line


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Asked]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    yield Asked(tmp_path / "config", capfd)
    client.connect.cache_clear()
    client._why_not.cache_clear()


def test_a_certificate_that_cannot_be_trusted_says_why_and_the_way_out(tmp_path: Path, asked: Asked) -> None:
    good, old = certificate(tmp_path, "good"), certificate(tmp_path, "old", dates=OVER)
    other = certificate(tmp_path, "other", host="DNS:gate.invalid")
    ca = {name: {"certificate-authority": str(tmp_path / f"{name}.crt")} for name in ("good", "old", "other")}
    with answering(*LIST, cert=good) as server:
        assert "not of the authority that the kubeconfig trusts (self-signed certificate)" in asked(server, ca["other"])
        assert "it speaks" in (said := asked(server.replace("https", "http"))) or "https://, and is the port" in said
    with answering(*LIST, cert=old) as server:
        assert "its certificate has expired; its administrator renews it" in asked(server, ca["old"])
    with answering(*LIST, cert=other) as server:
        assert "is not valid for '127.0.0.1'); write the name that it has" in asked(server, ca["other"])
    with answering(*LIST) as server:
        assert "does not speak TLS; is the port right" in asked(server.replace("http", "https"))
    with answering(*LIST, cert=good, clients=tmp_path / "other.crt") as server:
        mine = {"client-certificate": str(tmp_path / "good.crt"), "client-key": str(good)}
        assert "does not take the client certificate" in asked(server, ca["good"], **mine)


@pytest.mark.parametrize(
    ("cluster", "user", "said"),
    [
        ({"certificate-authority": "none.crt"}, {}, "its certificate-authority cannot be used: No such file or direct"),
        ({"certificate-authority-data": base64.b64encode(b"x").decode()}, {}, "there is no certificate in PEM in it"),
        ({}, {"client-certificate-data": base64.b64encode(b"x").decode()}, "or its client-key, is no PEM, or they"),
        ({"proxy-url": "a b"}, {}, "found 'a b' as its proxy-url, allowed is an address such as http://"),
        ({}, {"token": "qz\nqz"}, "its token cannot be sent: found a line break as letter 3 of 5, allowed are"),
        ({}, {"token": "gehe\u00efm"}, "found U+00EF as letter 5 of 6"),
    ],
)
def test_credentials_that_cannot_be_used_are_named_and_never_shown(
    asked: Asked, cluster: dict[str, Any], user: dict[str, Any], said: str
) -> None:
    line = asked("https://127.0.0.1:1", cluster, **user)
    assert said in line
    assert "qz" not in line
    assert "gehe" not in line


def test_a_line_that_is_only_read_is_asked_by_tcp_whether_it_is_still_there() -> None:
    with answering(b"hello\n", "text/plain") as server:
        one = client.Client(Access(server, "default", "x"))
        with one.log("pod") as response:
            line = response.connection.sock  # type: ignore[union-attr]
            options = [line.getsockopt(level, option) for level, option, _ in KEEPALIVE]
    assert options == [value for _, _, value in KEEPALIVE]


def test_a_line_of_a_command_is_asked_too_unless_the_command_has_already_closed_it() -> None:
    async def lines() -> list[int]:
        async def closes(line: ServerConnection) -> None:
            await line.recv()

        async with serve(closes, "127.0.0.1", 0) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            async with connect(f"ws://127.0.0.1:{port}", proxy=None) as line:
                exec.keep_alive(line)
                socket = line.transport.get_extra_info("socket")
                options = [socket.getsockopt(level, option) for level, option, _ in KEEPALIVE]
                await line.send("end")
                await line.wait_closed()
                exec.keep_alive(line)
        return options

    assert asyncio.run(lines()) == [value for _, _, value in KEEPALIVE]


def test_the_line_end_of_a_token_is_no_part_of_it(asked: Asked) -> None:
    with answering(*LIST) as server:
        kubeconfig(asked.path, server, token="abc\n")
        assert asked.said(0).startswith("no runs yet")


@pytest.mark.parametrize(
    ("body", "kind", "code", "said"),
    [
        (b"<html><title>Sign\n in</title>", "text/html", 200, "found a web page with the title 'Sign in' (HTTP 200)"),
        (b"<html>no</html>", "text/html", 403, "found a web page (HTTP 403), expected JSON; a proxy or a login page"),
        (b"<html>no</html>", "text/html", 404, "found a web page (HTTP 404)"),
        (b"", "text/plain; charset=utf-8", 200, "found 0 bytes of text/plain (HTTP 200)"),
        (b'{"items": [5]}', "application/json", 200, "found 14 bytes of application/json (HTTP 200)"),
        (b'{"a": "\xff"}', "application/json", 200, "found 10 bytes of application/json (HTTP 200)"),
    ],
)
def test_an_answer_that_is_no_api_servers_is_told(asked: Asked, body: bytes, kind: str, code: int, said: str) -> None:
    with answering(body, kind, code) as server:
        assert said in asked(server)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"clusters: \xff\n", "is not UTF-8 text (byte 11); save it as UTF-8"),
        ("clusters: []".encode("utf-16"), "is not UTF-8 text (UTF-16, as PowerShell's '>' writes it)"),
        (b"clusters: [a\nb: c", "is no YAML in line 2: expected ',' or ']'"),
    ],
)
def test_a_kubeconfig_that_cannot_be_read_is_told_with_its_place(asked: Asked, content: bytes, said: str) -> None:
    asked.path.write_bytes(content)
    assert said in asked.said()
