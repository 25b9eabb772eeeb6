"""`python3 look.py NAME [FOLDER...]`: print as one line of JSON what an engine put around this process."""

import json
import os
import socket
import stat
import sys


def around(name, folders=()):
    """NAME is what the record calls this process; the files of the folders are told with owner and mode."""
    return {
        "name": name,
        "hostname": socket.gethostname(),
        "fqdn": socket.getfqdn(),
        "env": dict(sorted(os.environ.items())),
        "files": {path: _file(path) for folder in folders for path in _below(folder)},
        "search": _search(),
    }


def _below(folder):
    if not os.path.isdir(folder):
        return []
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if not name.startswith("..")]


def _file(path):
    about = os.stat(path)
    return "%04o %d:%d" % (stat.S_IMODE(about.st_mode), about.st_uid, about.st_gid)


def _search():
    with open("/etc/resolv.conf") as file:
        return [word for line in file if line.startswith("search") for word in line.split()[1:]]


def say(seen):
    print("LOOK " + json.dumps(seen), flush=True)


if __name__ == "__main__":
    say(around(sys.argv[1], sys.argv[2:]))
