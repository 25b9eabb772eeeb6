"""Which interpreter a node's zygote is for a command, and what it is told."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import Any, Dict, List, Mapping, Optional, Tuple

from allranks.node.files import say, write_whole
from allranks.node.fork import preload, pycommand
from allranks.node.gang import Gang


def find(gang: Gang, env: Mapping[str, str]) -> Optional[str]:
    """The user's own python where the command's ranks are forked from it; None where any zygote will do."""
    command = pycommand.parse(gang.argv, gang.workdir)
    if gang.launcher != "native" or not command.forkable:
        return None
    return shutil.which(gang.argv[0], path=env.get("PATH"))


def of_ranks(gang: Gang, env: Mapping[str, str]) -> str:
    """The Python whose packages the ranks most likely have; empty where there is none."""
    return find(gang, env) or shutil.which("python3", path=env.get("PATH")) or ""


def command_line(gang: Gang, env: Mapping[str, str]) -> Tuple[List[str], Dict[str, Any]]:
    """The interpreter with the user's own flags and the zygote's configuration; our own with nothing to import."""
    python = find(gang, env)
    if python is None:
        return [sys.executable], {}
    command = pycommand.parse(gang.argv, gang.workdir)
    wanted = os.path.join(gang.state, "preload.json")  # too long a list for an argument
    try:
        write_whole(wanted, json.dumps(preload.names(gang.learned, gang.argv, gang.workdir, env)))
    except OSError as error:
        say(f"cannot write {wanted}: {error.strerror}")  # the zygote then imports what it did before
    config = {
        "preload": wanted, "bytecode": gang.bytecode, "argv": list(gang.argv),
        "path0": command.path0(gang.workdir, env),
    }  # fmt: skip
    return [python, *command.flags], config


def bare(gang: Gang, failed: int) -> Tuple[List[str], Dict[str, Any]]:
    """Our own interpreter, which nothing of the job's environment can break: its ranks say what is wrong themselves."""
    why = f"the interpreter that would fork them could not start, {failed} times"
    return [sys.executable, "-S", "-E"], {"argv": list(gang.argv), "why": why}
