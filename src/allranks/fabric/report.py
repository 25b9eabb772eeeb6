"""All that ``allranks fabric`` tells, as one value; the agent asks for the decision alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

from allranks.fabric.decide import AUTO, Decision, decide
from allranks.fabric.devices import Host, read_host
from allranks.fabric.nccl import RELEASES, Choice, choose
from allranks.fabric.settings import Settings, read_settings, saved_environment
from allranks.fabric.tree import Tree
from allranks.fabric.version import NEWEST, Version, find_version


@dataclass(frozen=True)
class Report:
    """``found`` is the NCCL seen or asked for; ``choices`` what each release does with what is set already."""

    host: Host
    found: Optional[Version]
    choices: Tuple[Choice, ...]
    decision: Decision

    def to_json(self) -> Dict[str, Any]:
        """The keys are fixed; more may be added."""
        return {
            "devices": [self.host.to_json(port) for port in self.host.ports],
            "nccl": [choice.to_json() for choice in self.choices],
            **self.decision.to_json(),
        }


def look(
    tree: Tree, env: Mapping[str, str], python: str = "", nccl: Optional[Version] = None, rdma: str = AUTO
) -> Report:
    """Read the tree and decide. ``env`` is this process's; a saved tree keeps its own.

    ``python`` is the interpreter whose NCCL counts; ``nccl`` overrules what is found.
    """
    if tree.root != "/":
        env = saved_environment(tree)
    found = nccl or find_version(tree, python, env)
    host = read_host(tree)

    def settings(version: Version) -> Settings:
        return read_settings(tree, env, version)

    releases = sorted({*RELEASES, *([found] if found else [])})
    choices = tuple(choose(host, version, settings(version)) for version in releases)
    return Report(host, found, choices, decide(host, found, settings(found or NEWEST), rdma))


def decision(tree: Tree, env: Mapping[str, str], python: str, rdma: str) -> Decision:
    """What is to be set on this node; ``env`` is what its ranks have already, wherever the tree is from."""
    found = find_version(tree, python, env)
    settings = read_settings(tree, {**saved_environment(tree), **env}, found or NEWEST)
    return decide(read_host(tree), found, settings, rdma)
