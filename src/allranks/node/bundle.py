"""The agent as one file: ``python3 agent.pyz init PLAN`` in any image that has Python 3.8.

Holds ``node/``, ``fabric/``, what a bench runs on the ranks and every engine's ``identity.py``, nothing else;
deterministic: the same code is the same bytes. Docstrings, a fifth of its size, stay behind.
"""

from __future__ import annotations

import os
import zipfile
from typing import List

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EPOCH = (1980, 1, 1, 0, 0, 0)
QUOTES = b'"' * 3
MAIN = """import os
import sys

if sys.version_info < (3, 8):
    why = "the image's python3 is %d.%d, and allranks needs 3.8 or newer in it" % sys.version_info[:2]
    sys.stderr.write("allranks: " + why + "\\n")
    try:
        log = open("/dev/termination-log", "r+")
        log.truncate()
        log.write(why)
        log.close()
    except (IOError, OSError):
        pass
    sys.exit(42)


def lay_out(bundle, folder):
    import zipfile

    if not os.path.isdir(folder):
        made = "%s.%d" % (folder, os.getpid())
        os.mkdir(made)  # nowhere but in a pod
        with zipfile.ZipFile(bundle) as file:
            file.extractall(made)
        os.rename(made, folder)
    return folder


own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
sys.path[1:] = [entry for entry in sys.path[1:] if entry not in own + [os.path.abspath(name) for name in own if name]]
try:
    sys.path[0] = lay_out(sys.path[0], "/run/allranks/agent")
except (IOError, OSError):
    pass

from allranks.node.__main__ import main

sys.exit(main())
"""
"""Understood by every Python, so that one that is too old can say so; 42 is for good. No file is made that a container
runtime has not made. In a pod, which has a folder of our own, the code is laid out there: what one process has compiled
is compiled for those after it. The job's PYTHONPATH is not for us: a logging.py that is in it would be ours too."""
# In the package these hold what needs more than the standard library.
EMPTY = ("allranks/engines/__init__.py",)
BENCH = ("allranks/bench/__init__.py", "allranks/bench/collectives.py")


def build(path: str) -> int:
    """Write the bundle; returns its size in bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        _add(bundle, "__main__.py", MAIN.encode())
        for name in sorted(_names()):
            with open(os.path.join(ROOT, name), "rb") as file:
                _add(bundle, name, b"" if name in EMPTY else without_docstrings(file.read()))
    return os.path.getsize(path)


def without_docstrings(source: bytes) -> bytes:
    """The same code, line by line, so that a traceback still names the right one.

    By lines and not by ``ast``, which takes a third of a second for all files. No text of ours that is used begins a
    line; a test holds that.
    """
    lines = []
    inside = docstring = False
    for line in source.split(b"\n"):
        begins = not inside and line.lstrip().startswith(QUOTES)
        docstring = begins or (inside and docstring)
        lines.append(line[: len(line) - len(line.lstrip())] + b"''" if begins else b"" if docstring else line)
        inside ^= line.count(QUOTES) % 2 == 1
    return b"\n".join(lines)


def _names() -> List[str]:
    node = [
        os.path.relpath(os.path.join(folder, name), ROOT)
        for part in ("node", "fabric", "bench/ranks")
        for folder, _, names in os.walk(os.path.join(ROOT, "allranks", part))
        for name in names
        if name.endswith(".py")
    ]
    engines = os.path.join(ROOT, "allranks", "engines")
    identities = [name for name in os.listdir(engines) if os.path.isfile(os.path.join(engines, name, "identity.py"))]
    parts = [f"allranks/engines/{name}/{file}" for name in identities for file in ("__init__.py", "identity.py")]
    return ["allranks/__init__.py", *EMPTY, *BENCH, *node, *parts]


def _add(bundle: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name.replace(os.sep, "/"), EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    bundle.writestr(info, content)
