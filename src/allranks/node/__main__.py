"""The node's one entry: ``init``, ``agent``, ``zygote`` and ``shim``.

Run as a module, from the bundle, or as a file by the user's own interpreter: then the folder that holds the
package is on the path for these imports only, so that the job sees its own packages and not ours.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run the part that the first argument names; returns its exit code."""
    part, arguments = sys.argv[1], sys.argv[2:]
    if part == "zygote":
        from allranks.node import zygote as chosen
    elif part == "shim":
        from allranks.node.launch import shim as chosen  # type: ignore[no-redef]
    elif part == "agent":
        from allranks.node import agent as chosen  # type: ignore[no-redef]
    else:
        from allranks.node import init as chosen  # type: ignore[no-redef]
    _forget_own_path()
    return chosen.main(arguments)


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
