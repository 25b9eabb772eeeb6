"""``sshd``: the first process of a node whose agent mpirun will start over ssh.

It keeps the container's environment, which sshd itself overwrites with its title, for that agent to take.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from typing import List

from allranks.node import container, processes
from allranks.node.entry import entry
from allranks.node.files import say
from allranks.node.gang import load
from allranks.node.launch import door
from allranks.node.verdict import EXIT_CANTCREAT

OWN_CONFIG = ".sshd_config"
"""In the home of a user who is not root: where MPI images for such users keep it."""
KEYS = "/etc/allranks/ssh"
"""Where a plan for such a user has the operator's keys mounted: nobody knows its home, and root's it may not enter."""
CONFIG = """\
Port {port}
PidFile none
HostKey {keys}/id_rsa
AuthorizedKeysFile {keys}/authorized_keys
PasswordAuthentication no
StrictModes no
UsePAM no
MaxStartups 256
LogLevel ERROR
"""
"""The keys are links into a Secret, which StrictModes refuses; mpirun knocks at every node at once."""
POLL = 0.2


def main(argv: List[str]) -> int:
    """Until sshd ends, or is told to; nothing that came in by it outlives it."""
    program = door.find("sshd", os.environ.get("PATH", os.defpath))
    why = _why_closed() if program else "no sshd in this image; on Debian and Ubuntu: apt-get install openssh-server"
    if program is None or why:
        say(why)
        gang = load(os.path.join(os.path.dirname(entry()), "plan.json"))
        container.leave_reason(gang, None, why, EXIT_CANTCREAT)
        return EXIT_CANTCREAT
    if os.geteuid() == 0:
        os.makedirs(door.SEPARATION, exist_ok=True)
    # A plan's is in a volume, the image's may be read-only.
    os.makedirs(os.environ.get("TMPDIR", "/tmp"), exist_ok=True)
    sshd = subprocess.Popen([program, "-De", *_config(), *argv], stdin=subprocess.DEVNULL)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: sshd.send_signal(received))
    processes.become_subreaper()
    while sshd.poll() is None:
        time.sleep(POLL)
        processes.reap_orphans(keep=[sshd.pid])
    processes.kill_descendants(os.getpid())
    return sshd.returncode if sshd.returncode >= 0 else 128 - sshd.returncode


def _why_closed() -> str:
    """What keeps this user's sshd from letting mpirun in; empty for nothing."""
    if os.geteuid() == 0 or (not os.path.isdir(KEYS) and os.path.exists(_own())):
        return ""
    if not os.path.isdir(KEYS):
        return (
            f"this container runs as user {os.geteuid()}, and the keys are mounted where only root reads them; write "
            f"container: {{securityContext: {{runAsUser: {os.geteuid()}}}}} into the spec"
        )
    return door.why_not_user()


def _config() -> List[str]:
    """Whose configuration sshd reads: root's is the image's."""
    if os.geteuid() == 0:
        return []
    if not os.path.isdir(KEYS):
        return ["-f", _own()]
    file = os.path.join(tempfile.mkdtemp(prefix="allranks-"), "sshd_config")
    with open(file, "w", encoding="utf-8") as config:
        config.write(CONFIG.format(port=door.PORT, keys=KEYS))
    return ["-f", file]


def _own() -> str:
    return os.path.join(os.path.expanduser("~"), OWN_CONFIG)
