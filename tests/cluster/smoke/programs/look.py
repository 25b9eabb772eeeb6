"""`python3 look.py NAME [FOLDER...]`: print as one line of JSON what an engine put around this process."""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
from collections.abc import Sequence


def around(name: str, folders: Sequence[str] = ()) -> dict[str, object]:
    """``name`` is what the record calls this process; the files of the folders are told with mode and owner."""
    return {
        "name": name,
        "hostname": socket.gethostname(),
        "fqdn": socket.getfqdn(),
        "env": dict(sorted(os.environ.items())),
        "files": {path: _file(path) for folder in folders for path in _below(folder)},
        "search": _search(),
    }


def say(seen: object) -> None:
    print("LOOK " + json.dumps(seen), flush=True)


def _below(folder: str) -> list[str]:
    if not os.path.isdir(folder):
        return []
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if not name.startswith("..")]


def _file(path: str) -> str:
    about = os.stat(path)
    return f"{stat.S_IMODE(about.st_mode):04o} {about.st_uid}:{about.st_gid}"


def _search() -> list[str]:
    with open("/etc/resolv.conf") as file:
        return [word for line in file if line.startswith("search") for word in line.split()[1:]]


if __name__ == "__main__":
    say(around(sys.argv[1], sys.argv[2:]))
