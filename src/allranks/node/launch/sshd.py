"""``sshd``: the first process of a node whose agent mpirun will start over ssh.

It keeps the container's environment, which sshd itself overwrites with its title, for that agent to take.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import List

from allranks.node import processes
from allranks.node.files import say
from allranks.node.launch import door

OWN_CONFIG = ".sshd_config"
"""In the home of a user who is not root: where MPI images for such users keep it."""
POLL = 0.2
EXIT_CANTCREAT = 73


def main(argv: List[str]) -> int:
    """Until sshd ends, or is told to; nothing that came in by it outlives it."""
    program = door.find("sshd", os.environ.get("PATH", os.defpath))
    if program is None:
        say("no sshd in this image; on Debian and Ubuntu: apt-get install openssh-server")
        return EXIT_CANTCREAT
    own = os.path.join(os.path.expanduser("~"), OWN_CONFIG)
    named = ["-f", own] if os.geteuid() and os.path.exists(own) else []
    if os.geteuid() == 0:
        os.makedirs(door.SEPARATION, exist_ok=True)
    sshd = subprocess.Popen([program, "-De", *named, *argv], stdin=subprocess.DEVNULL)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: sshd.send_signal(received))
    processes.become_subreaper()
    while sshd.poll() is None:
        time.sleep(POLL)
        processes.reap_orphans(keep=[sshd.pid])
    processes.kill_descendants(os.getpid())
    return sshd.returncode if sshd.returncode >= 0 else 128 - sshd.returncode
