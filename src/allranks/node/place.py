"""What a node knows of itself, and what it may read that from."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from importlib import import_module
from typing import List, Mapping, Tuple

ROOT = "ALLRANKS_ROOT"
"""Where a node that pretends to be a pod has the pod's files."""


class NoPlace(Exception):
    """What this node sees does not say which node it is; the message says what is missing or contradictory."""


@dataclass(frozen=True)
class Place:
    """A node's index in ``range(nodes)``, the gang's node count and where its coordinator listens.

    ``coordinator`` is a host name or an address; it is resolved anew on every dial.
    """

    node: int
    nodes: int
    coordinator: str


@dataclass(frozen=True)
class Surroundings:
    """What an engine's ``identity.place`` reads: variables, and files below ``root``.

    ``nodes`` is how many there are by the plan. Everything raises NoPlace for what is missing or makes no sense.
    """

    env: Mapping[str, str]
    nodes: int
    root: str = "/"

    def text(self, name: str) -> str:
        """A variable that must be there."""
        value = self.env.get(name, "")
        if not value:
            raise NoPlace(f"{name} is not set")
        return value

    def number(self, name: str) -> int:
        """A variable that must be a whole number, 0 or more."""
        value = self.text(name)
        if not (value.isascii() and value.isdigit()):
            raise NoPlace(f"{name} is {value!r}, and must be a whole number")
        return int(value)

    def agree(self, *names: str) -> str:
        """What those of the variables say that are set; the first must be. NoPlace when two differ."""
        first = self.text(names[0])
        for name in names[1:]:
            if self.env.get(name, first) != first:
                raise NoPlace(f"{names[0]} is {first!r}, but {name} is {self.env[name]!r}")
        return first

    def lines(self, path: str) -> List[str]:
        """The lines of a file that say something; none when there is no such file."""
        try:
            with open(os.path.join(self.root, path.lstrip("/")), encoding="utf-8") as file:
                found = [line.strip() for line in file]
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise NoPlace(f"cannot read {path}: {error}") from error
        return [line for line in found if line and not line.startswith("#")]

    @property
    def host(self) -> str:
        """The node's own host name."""
        if self.root == "/":
            return socket.gethostname()
        return "".join(self.lines("/etc/hostname")[:1])

    @property
    def host_and_domain(self) -> Tuple[str, str]:
        """The own name and the domain that peers are found in: kubelet writes ``IP NAME.DOMAIN NAME`` in /etc/hosts.

        It does so only for a pod that has a hostname and a subdomain.
        """
        host = self.host
        for line in self.lines("/etc/hosts"):
            _, *names = line.split()
            full = next((name for name in names if name.startswith(f"{host}.")), "")
            if full and host in names:
                return host, full[len(host) + 1 :]
        raise NoPlace(f"/etc/hosts has no full name of {host}: the pod needs a hostname and a subdomain")

    def place(self, node: int, coordinator: str, said_by: str) -> Place:
        """The place with that index; ``said_by`` names what told the index, for the error."""
        if not 0 <= node < self.nodes:
            raise NoPlace(f"{said_by} makes this node {node}, but the gang has nodes 0 to {self.nodes - 1}")
        return Place(node, self.nodes, coordinator)

    def must_count(self, found: int, said_by: str) -> None:
        """NoPlace when ``said_by`` tells another number of nodes than the plan."""
        if found != self.nodes:
            raise NoPlace(f"{said_by} says {found} nodes, but the gang has {self.nodes}")


def find_place(engine: str, nodes: int, env: Mapping[str, str]) -> Place:
    """Read this node's place as the engine's identity module does. Raises NoPlace."""
    identity = import_module(f"allranks.engines.{engine}.identity")
    found: Place = identity.place(Surroundings(env, nodes, env.get(ROOT, "/")))
    return found
