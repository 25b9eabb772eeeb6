"""A shell on the node that this container is: ``shell PLAN NODE [NAME=VALUE...]``, the values being the terminal's own.

It has the node's identity, and no rank's.
"""

from __future__ import annotations

import os
import sys
from typing import List

from allranks.node import network
from allranks.node.environment import shell_environment
from allranks.node.gang import load
from allranks.node.ledger import recall

SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh", "/usr/bin/sh", "/busybox/sh")
NO_SHELL = 127


def main(argv: List[str]) -> int:
    """Become the shell; returns only where there is none."""
    gang, node = load(argv[0]), int(argv[1])
    try:
        if gang.rdma:
            gang, _ = network.settle(gang, node, os.environ, lambda line: None)
    except network.NotATree as error:
        print(f"allranks: {error}", file=sys.stderr)
        return NO_SHELL
    env = shell_environment(gang, node, max(recall(gang, node)[0], 0), os.environ)
    env.update(dict(pair.split("=", 1) for pair in argv[2:]))
    os.chdir(gang.workdir)
    for shell in [env.get("SHELL", ""), *SHELLS]:
        if shell and os.access(shell, os.X_OK):
            os.execve(shell, [shell], env)
    print(f"allranks: this image has no shell ({', '.join(SHELLS)})", file=sys.stderr)
    return NO_SHELL
