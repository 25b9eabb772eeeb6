"""An agent's part of a preflight: what is wrong on its own node, and how fast the way to another one is."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any, Callable, Dict, List, Mapping, Optional

from allranks.fabric import doctor
from allranks.fabric.decide import Finding
from allranks.fabric.tree import open_tree
from allranks.node import probe
from allranks.node.environment import base_environment
from allranks.node.fork import interpreter
from allranks.node.gang import Gang

MOST_FINDINGS = 16
NAMED = "GLOO_SOCKET_IFNAME in the spec's env, or /etc/hosts"


class Checker:
    """``tell`` sends to the coordinator: ``checked`` once, ``probed`` for each probe that was asked for."""

    def __init__(self, gang: Gang, node: int, secret: bytes, tell: Callable[..., None]) -> None:
        self._gang, self._node, self._secret, self._tell = gang, node, secret, tell
        self._server: Optional[socket.socket] = None
        self._found: Optional[Dict[str, Any]] = None

    async def check(self, address: str) -> None:
        """Look at this node, and listen for probes. ``address`` is where others reach it."""
        loop = asyncio.get_running_loop()
        if self._found is None:
            self._found = await loop.run_in_executor(None, self._look)
        if self._server is None:
            bound = (
                self._gang.addresses[self._node] if self._gang.engine == "local" else ("::" if ":" in address else "")
            )
            self._server = probe.listen(bound, probe.token_of(self._secret, self._node))
            address = bound or address
        port = self._server.getsockname()[1]
        self._tell(type="checked", address=address, port=port, **self._found)

    def _look(self) -> Dict[str, Any]:
        gang = self._gang
        env = base_environment(gang, os.environ)
        tree = open_tree(gang.fabric_root_of(self._node))
        python = interpreter.of_ranks(gang, env)
        folders = {"the run's folder": gang.state, "the working folder": gang.workdir}
        needs = doctor.Needs(gang.gpus, gang.ranks_on_node, gang.rdma or "auto", folders)
        found = doctor.examine(tree, env, python, needs, doctor.Limits.read(folders))
        found += _name(gang)
        return {
            "findings": [one.to_json() for one in found[:MOST_FINDINGS]],
            "facts": doctor.facts(tree, env, python),
        }

    async def probe(self, message: Mapping[str, Any]) -> None:
        """Measure the way to a peer, both ways, and tell."""
        peer = int(message["peer"])
        token = probe.token_of(self._secret, peer)
        answer: Dict[str, Any] = {"there": 0.0, "back": 0.0, "why": ""}
        try:
            address, port = str(message["address"]), int(message["port"])
            measured = asyncio.get_running_loop().run_in_executor(None, probe.measure, address, port, token)
            answer["there"], answer["back"] = await measured
        except OSError as error:
            answer["why"] = str(error)[:300]
        self._tell(type="probed", round=message["round"], peer=peer, **answer)

    def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
            self._server = None


def _name(gang: Gang) -> List[Finding]:
    """Gloo, and torch without an interface named, listen on what the host's own name resolves to."""
    if gang.engine == "local" or gang.nodes == 1:
        return []
    name = socket.gethostname()
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    except OSError as error:
        what, why = f"{name} does not resolve ({error.strerror or error})", "gloo cannot tell which interface is meant"
        return [Finding("warning", "DNS", what, NAMED, why)]
    if all(address.startswith("127.") or address == "::1" for address in addresses):
        what, why = f"{name} resolves to loopback alone", "gloo listens there, and no other node reaches it"
        return [Finding("warning", "DNS", what, NAMED, why)]
    return []
