"""The node's one entry: ``init``, ``agent``, ``zygote``, ``ask``, ``record``, ``ready``, ``shell`` and more.

Run as a module, from the bundle, or as a file by the user's own interpreter: then the folder that holds the
package is on the path for these imports only, so that the job sees its own packages and not ours.
"""

from __future__ import annotations

import sys
from importlib import import_module

PARTS = {
    "init": "allranks.node.init",
    "agent": "allranks.node.agent",
    "zygote": "allranks.node.fork.zygote",
    "ask": "allranks.node.ask",
    "record": "allranks.node.record",
    "ready": "allranks.node.ready",
    "shell": "allranks.node.shell",
    "shim": "allranks.node.launch.shim",
    "mpirun": "allranks.node.launch.mpirun",
    "over-ssh": "allranks.node.launch.over_ssh",
    "sshd": "allranks.node.launch.sshd",
}


def main() -> int:
    """Run the part that the first argument names; returns its exit code."""
    part = import_module(PARTS[sys.argv[1]])
    _forget_own_path()
    code: int = part.main(sys.argv[2:])
    return code


def _forget_own_path() -> None:
    if _ROOT in sys.path:
        sys.path.remove(_ROOT)


_ROOT = ""
if not __package__:
    from os.path import abspath, dirname

    _ROOT = dirname(dirname(dirname(abspath(__file__))))
    sys.path[0] = _ROOT

if __name__ == "__main__":
    sys.exit(main())
