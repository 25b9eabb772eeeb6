"""What this node must set for NCCL: decided here, from this node's own files, and never told to another node."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Mapping, Tuple

from allranks.fabric.decide import Finding
from allranks.fabric.report import decision
from allranks.fabric.tree import NotATree, open_tree
from allranks.node.environment import base_environment
from allranks.node.fork import interpreter
from allranks.node.gang import Gang

__all__ = ["NotATree", "settle"]


def settle(gang: Gang, node: int, env: Mapping[str, str], say: Callable[[str], None]) -> Tuple[Gang, str]:
    """The gang as this node's agent has it, with what its ranks get. ``env`` is the agent's environment.

    What the spec's ``env`` or the surroundings set is kept. The text says why the gang may not start here, and is empty
    where it may. Raises NotATree when the node's root is no tree.
    """
    own = base_environment(gang, env)
    tree = open_tree(gang.fabric_root_of(node))
    python = interpreter.of_ranks(gang, own)
    decided = decision(tree, own, python, gang.rdma)
    for name, value in decided.set.items():
        say(f"network: sets {name}={value}")
    for finding in decided.findings:
        if finding.level != "note":
            say(
                f"network: {finding.level}: {finding.where}: {finding.what}"
                + (f"; {finding.fix}" if finding.fix else "")
            )
    fatal = [finding for finding in decided.findings if finding.level == "error" and finding.where == "network.rdma"]
    users_own = any(name.startswith("NCCL_DEBUG") for name, _ in decided.leave)
    return replace(gang, network=decided.set, nccl_lines=not users_own), _told(fatal[0]) if fatal else ""


def _told(finding: Finding) -> str:
    return f"network.rdma: {finding.what}" + (f"; {finding.fix}" if finding.fix else "")
