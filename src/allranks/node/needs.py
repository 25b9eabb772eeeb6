"""Whether the ranks' Python has what they need: asked before anything starts, so that the answer is one line."""

from __future__ import annotations

import subprocess
from typing import Mapping

from allranks.node.environment import base_environment
from allranks.node.fork import interpreter
from allranks.node.gang import Gang

LOOK = """import sys; from importlib.util import find_spec
print(*[name for name in sys.argv[1:] if getattr(find_spec(name), "origin", None) is None])"""
"""A folder of that name, as /allranks in every container, is a package too, but one that comes from no file."""
LOOK_WAIT = 60.0


class Lacking(Exception):
    """The image is not one for these ranks; what it lacks, and what to do."""


def check(gang: Gang, env: Mapping[str, str]) -> None:
    """Look for ``gang.needs``. Raises Lacking."""
    if not gang.needs:
        return
    own = base_environment(gang, env)
    python = interpreter.find(gang, own)
    if python is None:
        raise Lacking(f"there is no {gang.argv[0]} here; {gang.to_have_them}")
    try:
        done = subprocess.run(
            [python, "-c", LOOK, *gang.needs], env=own, cwd=gang.workdir, timeout=LOOK_WAIT,
            stdin=subprocess.DEVNULL, capture_output=True,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Lacking(f"{python} cannot be run: {error}") from error
    missing = ", ".join(done.stdout.decode("utf-8", "replace").split())
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise Lacking(f"{python} ended with {done.returncode}{''.join(f': {line}' for line in said)}")
    if missing:
        raise Lacking(f"{python} has no {missing}; {gang.to_have_them}")
