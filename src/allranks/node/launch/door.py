"""A node's door: an sshd of the run's own, by which mpirun enters the node for one attempt.

It knows one key, the run's, and lets in nobody but the user whom the run belongs to. All its files are in the run's
directory. On this machine it listens on the node's own address and a free port, which it leaves in a file; in a
container, where nodes share no directory, on PORT, and whoever enters waits until it answers.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from typing import Callable, Dict, List, Optional

from allranks.node import processes
from allranks.node.files import write_whole
from allranks.node.gang import Gang, read_secret
from allranks.node.launch import keys

FOLDER = "ssh"
PORT = 29491
"""Of every node's door, where a node is a container."""
DIAL = 2.0
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where sshd is, which is on the PATH of root alone."""
SEPARATION = "/run/sshd"
OPEN_WAIT = 30.0
POLL = 0.01


def why_not(path: str) -> str:
    """Say what this machine lacks for sshd and ssh, and the way out; nothing when it has all. ``path`` is a PATH."""
    for program in ("ssh", "ssh-keygen", "sshd"):
        if find(program, path) is None:
            return f"no {program} on this machine; on Debian and Ubuntu: apt-get install openssh-server"
    if os.geteuid() == 0 and not os.path.isdir(SEPARATION):
        return f"sshd started by root needs the folder {SEPARATION}; make it: mkdir -m 755 {SEPARATION}"
    return why_not_user()


def why_not_user() -> str:
    """Say why sshd would not let in the user that this process is; nothing when it would."""
    try:
        shell = pwd.getpwuid(os.geteuid()).pw_shell
    except KeyError:
        return f"sshd lets in only users that /etc/passwd lists, and it has none with the number {os.geteuid()}"
    if os.path.basename(shell) in ("nologin", "false"):
        return f"sshd lets in only users with a shell, and yours is {shell}"
    return ""


def find(program: str, path: str) -> Optional[str]:
    """The file of that name in PATH, or among the system's."""
    return shutil.which(program, path=os.pathsep.join([path, *SYSTEM_FOLDERS]))


def make_keys(state: str, path: str) -> None:
    """Write the run's key pair, which serves both ends. Raises OSError."""
    folder = os.path.join(state, FOLDER)
    os.mkdir(folder, 0o700)
    keygen = find("ssh-keygen", path) or "ssh-keygen"
    argv = [keygen, "-q", "-t", "ed25519", "-N", "", "-C", "allranks", "-f", os.path.join(folder, "key")]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=OPEN_WAIT, check=False
    )
    if done.returncode:
        raise OSError(f"ssh-keygen failed: {done.stderr.strip() or done.stdout.strip()}")


def lay_out(gang: Gang) -> None:
    """In a container: the folder, and in it the key that every node makes for itself. Raises OSError."""
    folder = os.path.join(gang.state, FOLDER)
    os.makedirs(folder, 0o700, exist_ok=True)
    private, public = keys.of_run(read_secret(gang.state))
    write_whole(os.path.join(folder, "key"), private, mode=0o600)
    write_whole(os.path.join(folder, "key.pub"), public)
    if os.geteuid() == 0:
        os.makedirs(SEPARATION, 0o755, exist_ok=True)


class Door:
    """Where one node of one attempt is entered. ``given`` are variables that every process started there finds."""

    def __init__(self, gang: Gang, node: int, attempt: int, given: Dict[str, str]) -> None:
        self._gang, self._node, self._attempt, self._given = gang, node, attempt, given
        self.address = gang.addresses[node] if gang.addresses else ""

    def open(self) -> int:
        """Start sshd, wait until it listens, and leave its port where mpirun's node reads it; returns its pid.

        Raises OSError.
        """
        port = _free_port(self.address) if self.address else PORT
        config = f"{self._path()}.sshd_config"
        write_whole(config, self._config(port), mode=0o600)
        program = find("sshd", os.environ.get("PATH", os.defpath))
        if program is None:
            raise OSError("no sshd on this node")
        sshd = start([program, "-D", "-e", "-f", config], dict(os.environ), "/")
        give_up = time.monotonic() + OPEN_WAIT
        while not processes.listening(port):
            if os.waitpid(sshd, os.WNOHANG)[0]:
                raise OSError(f"sshd ended before it listened on port {port}")
            if time.monotonic() > give_up:
                raise OSError(f"sshd does not listen on {self.address}:{port} after {OPEN_WAIT:g} s")
            time.sleep(POLL)
        write_whole(f"{self._path()}.port", str(port))
        return sshd

    def remove(self) -> None:
        """Take away this attempt's files; the next one writes its own."""
        for name in ("port", "sshd_config"):
            try:
                os.unlink(f"{self._path()}.{name}")
            except FileNotFoundError:
                pass  # it never opened

    def _path(self) -> str:
        return os.path.join(self._gang.state, FOLDER, f"attempt-{self._attempt}-node-{self._node}")

    def _config(self, port: int) -> str:
        key = os.path.join(self._gang.state, FOLDER, "key")
        given = " ".join(f'"{name}={value}"' for name, value in self._given.items())
        listen = f"ListenAddress {self.address}\n" if self.address else ""
        return f"""\
{listen}Port {port}
HostKey "{key}"
AuthorizedKeysFile "{key}.pub"
AllowUsers {pwd.getpwuid(os.geteuid()).pw_name}
AuthenticationMethods publickey
PermitRootLogin prohibit-password
UsePAM no
StrictModes no
PidFile none
PermitUserRC no
X11Forwarding no
AllowTcpForwarding no
UseDNS no
LogLevel ERROR
SetEnv {given}
"""


def port_of(gang: Gang, node: int, attempt: int, give_up: float, leaving: Callable[[], bool]) -> int:
    """Wait for a node's door; returns its port. Raises OSError when it is still shut at ``give_up`` (monotonic)."""
    if gang.hosts:
        return _await_door(gang.hosts[node], node, give_up, leaving)
    path = os.path.join(gang.state, FOLDER, f"attempt-{attempt}-node-{node}.port")
    while True:
        try:
            with open(path, encoding="ascii") as file:
                return int(file.read())
        except FileNotFoundError:
            if leaving():
                raise OSError("asked to stop") from None
            if time.monotonic() > give_up:
                raise OSError(f"waited {OPEN_WAIT:g} s in vain for the sshd of node {node}; see its log") from None
            time.sleep(POLL)


def _await_door(host: str, node: int, give_up: float, leaving: Callable[[], bool]) -> int:
    """Until the name is known and the door answers; ssh itself waits for neither."""
    while True:
        try:
            with socket.create_connection((host, PORT), DIAL) as found:
                if found.recv(64).startswith(b"SSH-"):
                    found.sendall(b"SSH-2.0-allranks\r\n")  # who goes without a word is an error to sshd
                    return PORT
            why = "no sshd there"
        except OSError as error:
            why = error.strerror or str(error)
        if leaving():
            raise OSError("asked to stop")
        if time.monotonic() > give_up:
            raise OSError(f"waited {OPEN_WAIT:g} s in vain for the sshd of node {node}, {host}:{PORT}: {why}")
        time.sleep(POLL)


def write_client(gang: Gang, hosts: List[str], ports: List[int]) -> None:
    """Let ssh, in the run's ``ssh`` folder with ``-F config``, find every node by its name and trust the run's key."""
    folder = os.path.join(gang.state, FOLDER)
    with open(os.path.join(folder, "key.pub"), encoding="ascii") as file:
        write_whole(os.path.join(folder, "known_hosts"), f"allranks {file.read()}")
    each = "".join(
        f"Host {name}\n  HostName {address}\n  Port {port}\n"
        for name, address, port in zip(hosts, gang.addresses or hosts, ports)
    )
    common = (
        "Host *\n  IdentityFile key\n  IdentitiesOnly yes\n  IdentityAgent none\n  BatchMode yes\n"
        "  UserKnownHostsFile known_hosts\n  GlobalKnownHostsFile /dev/null\n  HostKeyAlias allranks\n"
        "  StrictHostKeyChecking yes\n  LogLevel ERROR\n"
    )
    write_whole(os.path.join(folder, "config"), each + common)


def start(argv: List[str], env: Dict[str, str], cwd: str) -> int:
    """Start a program in a session of its own, with no signal blocked, for a caller that reaps; returns its pid."""
    return subprocess.Popen(
        argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, ()),
    ).pid  # fmt: skip


def _free_port(address: str) -> int:
    with socket.create_server((address, 0)) as found:
        port: int = found.getsockname()[1]
        return port
