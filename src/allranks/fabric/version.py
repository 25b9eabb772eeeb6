"""NCCL's version: as somebody writes it, and as it is found beside the python that will run."""

from __future__ import annotations

import glob
import os
import re
from typing import Mapping, Optional, Tuple

from allranks.fabric.tree import Tree

Version = Tuple[int, ...]

NEWEST: Version = (2, 30, 7)
OLDEST: Version = (2, 18, 1)
SAVED = "etc/allranks/nccl"
"""Where a saved tree keeps what was found."""

LIBRARY = re.compile(r"libnccl\.so\.(2\.\d{1,3}\.\d{1,3})$")
WHEEL = re.compile(r"nvidia_nccl_cu\d+-(2\.\d{1,3}\.\d{1,3})(?:\.post\d+)?\.dist-info$")
PLACES = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/local/nccl*/lib", "/opt/conda/lib")


def parse_version(text: str) -> Optional[Version]:
    """``2.18.5``, ``2.21`` (its newest release) or ``2.18.5-1``; None when it is no version of NCCL's."""
    found = re.fullmatch(r"2\.(\d{1,3})(?:\.(\d{1,3}))?(?:[-+.].{0,20})?", text.strip())
    return (2, int(found.group(1)), int(found.group(2) or 999)) if found else None


def shown(version: Version) -> str:
    """``2.18.5``; ``2.21`` where only that was said."""
    return ".".join(str(part) for part in version if part != 999)


def find_version(tree: Tree, python: str, env: Mapping[str, str]) -> Optional[Version]:
    """The version that a program of that python will load; None when there is none to be seen.

    The wheel beside torch comes first, because torch is linked to it; then LD_LIBRARY_PATH and the system's own.
    ``python`` is the path of an interpreter, or empty. A saved tree holds the answer.
    """
    if tree.root != "/":
        return parse_version(tree.read(SAVED) or "")
    wheels = (f"{folder}/nvidia_nccl_cu*.dist-info" for folder in _packages(python, env))
    folders = [folder for folder in env.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")]
    libraries = (f"{folder}/libnccl.so.2.*" for folder in (*folders, *PLACES))
    for pattern in (*wheels, *libraries):
        for path in sorted(glob.glob(pattern), reverse=True):
            found = WHEEL.search(path) or LIBRARY.search(path)
            if found:
                return parse_version(found.group(1))
    return None


def find_package(tree: Tree, python: str, env: Mapping[str, str], name: str) -> Optional[str]:
    """The version of a package that a program of that python will import; None where there is none to be seen."""
    if tree.root != "/":
        return None
    for folder in _packages(python, env):
        for path in sorted(glob.glob(f"{folder}/{name}-*.dist-info"), reverse=True):
            return os.path.basename(path)[len(name) + 1 : -len(".dist-info")]
    return None


def _packages(python: str, env: Mapping[str, str]) -> Tuple[str, ...]:
    """Patterns of the folders in which that python looks for packages."""
    extra = tuple(folder for folder in env.get("PYTHONPATH", "").split(":") if folder.startswith("/"))
    if not python:
        return extra
    prefixes = dict.fromkeys(os.path.dirname(os.path.dirname(path)) for path in (python, os.path.realpath(python)))
    below = tuple(f"{prefix}/lib/python3*/{kind}-packages" for prefix in prefixes for kind in ("site", "dist"))
    return (*extra, *below, "/usr/local/lib/python3*/dist-packages")
