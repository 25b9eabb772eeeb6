"""The front's own process: it listens, serves, and ends when rank 0 does."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from typing import NoReturn

import uvicorn

from allranks.errors import system_reason
from allranks.serving import folder, key
from allranks.serving.folder import NOT_NOW, UNFIT, NotNow, Unfit
from allranks.serving.front.app import make
from allranks.serving.front.connection import SPARE, Connection
from allranks.serving.front.link import Link
from allranks.serving.front.metrics import Metrics
from allranks.serving.front.texts import Texts
from allranks.serving.options import Options
from allranks.serving.pipe import encode

CONNECTIONS = 32
"""So many clients a service must be able to have, or it is none."""
PORT_WAIT = 10.0
"""Seconds in which the front of an earlier attempt may let go of the port."""
GIVEN_UP = 20.0
"""Seconds without news of rank 0 after which it is ended: other ranks notice sooner, but there may be none."""
AFTERWARDS = 0.5
"""Seconds in which answers are written to the end once the gang is over."""


class Server(uvicorn.Server):
    """Ends when rank 0 does, and not by signals: those are rank 0's to answer."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


def run(end: socket.socket, options: Options) -> NoReturn:
    """Serve until rank 0 has ended; never returns. ``end`` is this process's end of the pipe to rank 0."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    try:
        secret = key.read(options.key_env, options.key_file)
        asyncio.run(_serve(options, secret, _listen(options), _texts(options), end))
    except (Unfit, NotNow) as error:
        with contextlib.suppress(OSError):  # rank 0 has gone before
            end.sendall(encode({"op": "failed", "why": str(error)}))  # it says so last of all
        os._exit(UNFIT if isinstance(error, Unfit) else NOT_NOW)
    except BaseException:  # noqa: BLE001 - the last rim: nothing above may run twice, here and in rank 0
        traceback.print_exc()
    os._exit(70)


async def _serve(options: Options, secret: str, listener: socket.socket, texts: Texts, end: socket.socket) -> None:
    link = Link(options, Metrics(), texts.eos)
    reader, writer = await asyncio.open_connection(sock=end, limit=2**26)
    config = uvicorn.Config(
        make(options, link, texts, secret), http=Connection, log_level="warning", access_log=False, backlog=2048,
        timeout_keep_alive=65, server_header=False, lifespan="off",
    )  # fmt: skip
    server = Server(config)
    writer.write(encode({"op": "up"}))
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    listening = asyncio.ensure_future(link.listen(reader, writer))
    watching = asyncio.ensure_future(_watch(link, os.getppid()))
    await asyncio.wait([serving, listening], return_when=asyncio.FIRST_COMPLETED)
    watching.cancel()
    await asyncio.sleep(AFTERWARDS)
    server.should_exit = True  # answers that are being written are written to their end
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(serving, AFTERWARDS)
    os._exit(0)


async def _watch(link: Link, rank: int) -> None:
    """Tell the clients when rank 0, this process's parent, stands still, and end it, so that the gang starts again."""
    looked = time.monotonic()
    while link.silence < GIVEN_UP or os.getppid() != rank:
        await asyncio.sleep(1)  # nothing announces silence
        if time.monotonic() - looked > GIVEN_UP / 2:
            link.excuse()  # this process itself was held up
        looked = time.monotonic()
    link.give_up(f"rank 0 has said nothing for {GIVEN_UP:g} s")
    print(f"serving: rank 0 has said nothing for {GIVEN_UP:g} s, and is ended", file=sys.stderr, flush=True)
    await asyncio.sleep(AFTERWARDS)  # this process may end with rank 0
    os.kill(rank, signal.SIGKILL)


def _listen(options: Options) -> socket.socket:
    """The socket of the service's port. Raises Unfit, and NotNow where the port was ours before: it may be again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < SPARE + CONNECTIONS:
        wanted = f"for {CONNECTIONS} connections it needs {SPARE + CONNECTIONS}; raise it (ulimit -n)"
        raise Unfit(f"the HTTP process may have {hard} open files, and {wanted}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else max(soft, 65536), hard))
    until = time.monotonic() + (PORT_WAIT if folder.not_yet() is NotNow else 0)
    while True:
        try:
            return socket.create_server((options.host, options.port), backlog=2048)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                where = f"{options.host}:{options.port}"
                why = f"cannot listen on {where}: {system_reason(error)}; name another host or port"
                raise folder.not_yet()(why) from error
        time.sleep(0.1)  # nothing announces that a port is free


def _texts(options: Options) -> Texts:
    """What cuts texts into tokens. Raises Unfit and NotNow."""
    try:
        return Texts(folder.fetch(options.model), options.chat_template)
    except (Unfit, NotNow):
        raise
    except Exception as error:  # of damaged files tokenizers raises no narrower one
        said = f"{type(error).__name__}: {folder.in_one_line(error)}"
        raise Unfit(f"the tokenizer of {options.model} cannot be loaded: {said}") from error
