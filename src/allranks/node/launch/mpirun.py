"""``launcher: mpirun``: Open MPI's mpirun, on node 0, starts every rank over ssh; each rank goes through the shim.

Each node's launcher process opens the node's door (``door.py``), and node 0's runs mpirun beside it. A process that
mpirun starts over ssh has sshd's clean environment and what Open MPI adds to it; the node's own it takes from the
launcher process, whose pid sshd passes on: so no variable is ever written down.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Dict, Iterator, List, Tuple

from allranks.node import processes
from allranks.node.entry import entry
from allranks.node.gang import Gang, load
from allranks.node.launch import door, shim
from allranks.node.launch.spawn import Spawn, Start

HOSTFILE = "/etc/mpi/hostfile"
NODE_PROCESS = "ALLRANKS_NODE_PROCESS"
MPIS_OWN = ("OMPI_", "PMIX_", "PRTE_")
AWAITED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}
LOOK_EVERY, LOOK_FOR, FOR_EVER = 0.05, 3.0, 1e9
NOBODY = 0
SSHD = "sshd"
"""How the names of sshd's own processes begin: one for each that knocks, which we inherit when its parent is quicker.

It ends with 255 where somebody only looked whether the door is open.
"""
SOFTWARE_ERROR = 70


def why_not(path: str) -> str:
    """Say what this machine lacks to start ranks so, and the way out; nothing when it has all. ``path`` is a PATH."""
    program = shutil.which("mpirun", path=path)
    if program is None:
        return f"no mpirun in PATH ({path}); on Debian and Ubuntu: apt-get install openmpi-bin openssh-server"
    try:
        version = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} does not answer: {error}"
    if "Open MPI" not in version:
        found = (version.strip().splitlines() or ["nothing"])[0]
        return f"{program} is not Open MPI's: it says {found!r}"
    return door.why_not(path)


def spawns(gang: Gang, node: int, start: Start) -> List[Spawn]:
    """One launcher process a node; its ranks come in by its door."""
    environment = {
        **shim.environment(gang, node, start),
        "MASTER_ADDR": start.address, "MASTER_PORT": str(start.port),
    }  # fmt: skip
    argv = (sys.executable, entry(), "mpirun")
    return [Spawn(argv, environment, gang.launcher_log_of(start.attempt, node))]


def main(argv: List[str]) -> int:
    """``mpirun``: be the node's launcher process; ``mpirun rank COMMAND``: be what mpirun starts for a rank."""
    try:
        return _rank(argv[1:]) if argv else _Launcher(load(os.environ[shim.PLAN])).run()
    except OSError as error:
        print(f"allranks: {error}", file=sys.stderr, flush=True)
        return SOFTWARE_ERROR


class _Launcher:
    """One node's launcher process: parent of its sshd, of mpirun, and of all that comes in and is orphaned."""

    def __init__(self, gang: Gang) -> None:
        self._gang = gang
        self._node, self._attempt = int(os.environ["ALLRANKS_NODE"]), int(os.environ["ALLRANKS_ATTEMPT"])
        self._folder = os.path.join(gang.state, door.FOLDER)
        self._temporary = os.path.join(self._folder, f"tmp-{self._node}")
        self._door = door.Door(gang, self._node, self._attempt, self._given())
        self._sshd = self._mpirun = NOBODY

    def run(self) -> int:
        """Until mpirun has ended or, on the other nodes, until all that came in have gone; or until a signal."""
        processes.become_subreaper()
        signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
        shutil.rmtree(self._temporary, ignore_errors=True)
        os.makedirs(self._temporary)
        try:
            if self._gang.hosts:
                door.lay_out(self._gang)
            self._sshd = self._door.open()
            if self._node == 0:
                self._mpirun = self._start_mpirun()
            return self._watch()
        finally:
            if self._sshd != NOBODY:
                _send(self._sshd, signal.SIGKILL)
            self._door.remove()
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _watch(self) -> int:
        look_until, last = 0.0, 0
        while True:
            found = signal.sigtimedwait(AWAITED, LOOK_EVERY if time.monotonic() < look_until else FOR_EVER)
            if found is not None and found.si_signo != signal.SIGCHLD:
                self._end_ranks()
                return 128 + found.si_signo
            for pid, code, name in _reap():
                if pid == self._mpirun:
                    return code
                if pid != self._sshd:  # Open MPI's daemon, unless a rank has left something
                    if not name.startswith(SSHD):
                        look_until, last = time.monotonic() + LOOK_FOR, code
                    continue
                self._sshd = NOBODY  # whoever has come in is not disturbed by that
                if self._is_empty():
                    raise OSError(f"sshd of node {self._node} ended with {code}")
            if time.monotonic() < look_until and self._is_empty():
                if last:
                    print(f"allranks: what mpirun had started on node {self._node} ended with {last}", flush=True)
                return last

    def _is_empty(self) -> bool:
        return all(process.pid == self._sshd for process in processes.descendants(os.getpid()))

    def _end_ranks(self) -> None:
        """Ask the node's ranks to end, and wait for it: the agent kills when its patience is over.

        Open MPI's own processes are stopped before: they would kill the ranks of all nodes a second after the first
        end, and 4.1.4 crashes when it is asked to end twice. What is stopped is killed when this process has ended.
        """
        me = os.getpid()
        stopped = {p.pid for p in processes.descendants(me) if p.parent == me and p.pid != self._sshd}
        for pid in stopped:
            _send(pid, signal.SIGSTOP)
        for process in self._inside():
            if process.parent in stopped:  # a shim, which passes it on to its rank
                _send(process.pid, signal.SIGTERM)
        while self._inside():  # they are not our children: nothing tells us of their ends
            time.sleep(LOOK_EVERY)

    def _inside(self) -> List[processes.Process]:
        """What Open MPI's processes have below them and is alive."""
        found = processes.descendants(os.getpid(), spare=[self._sshd])
        return [process for process in found if process.parent != os.getpid() and process.is_alive]

    def _given(self) -> Dict[str, str]:
        """What leads a process back to its node; Open MPI's session folder is the node's own."""
        return {"ALLRANKS_NODE": str(self._node), NODE_PROCESS: str(os.getpid()), "TMPDIR": self._temporary}

    def _start_mpirun(self) -> int:
        gang, give_up = self._gang, time.monotonic() + door.OPEN_WAIT
        hosts = host_names(gang)
        ports = [
            door.port_of(gang, node, self._attempt, give_up, _asked_to_end) for node in range(gang.nodes)
        ]  # fmt: skip
        door.write_client(gang, hosts, ports)
        with open(os.path.join(self._folder, "hostfile"), "w", encoding="utf-8") as file:
            file.writelines(f"{host} slots={gang.ranks_on_node}\n" for host in hosts)
        # By its path, so that the other nodes look for their part in the same place.
        program = shutil.which("mpirun") or "mpirun"
        as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        argv = [
            program, *as_root, "--hostfile", "hostfile", "-np", str(gang.world_size), "--map-by", "slot",
            "--bind-to", "none", "--wdir", gang.workdir, sys.executable, entry(), "mpirun", "rank", *gang.argv,
        ]  # fmt: skip
        return door.start(argv, env=self._environment(), cwd=self._folder)

    def _environment(self) -> Dict[str, str]:
        """Open MPI's settings under the names of version 4 and, where they differ, of 5.

        On this machine all nodes share /dev/shm and a host name, so that Open MPI's shared-memory segments of two
        nodes have one name (4.1.4 crashes in its vader BTL): ranks talk over the loopback device alone.
        """
        settings = {
            "plm_rsh_args": "-F config", "orte_keep_fqdn_hostnames": "1", "plm_rsh_no_tree_spawn": "1",
        }  # fmt: skip
        newer = {"plm_ssh_args": "-F config", "prte_keep_fqdn_hostnames": "1", "plm_ssh_no_tree_spawn": "1"}
        env = {**os.environ, **self._given()}
        env.update((f"OMPI_MCA_{name}", value) for name, value in settings.items())
        env.update((f"PRTE_MCA_{name}", value) for name, value in newer.items())
        if self._gang.engine == "local":
            for name, value in {"btl": "self,tcp", "btl_tcp_if_include": "lo", "oob_tcp_if_include": "lo"}.items():
                env.setdefault(f"OMPI_MCA_{name}", value)
        return env


def host_names(gang: Gang) -> List[str]:
    """Each node's name in the order of the nodes, as the engine's hostfile has it where there is one.

    The hostfile's own order may differ, and mpirun counts ranks along it.
    """
    if gang.hosts:
        return list(gang.hosts)
    if not gang.pods:
        return [gang.name_of(node) for node in range(gang.nodes)]
    with open(gang.root_of(0) + HOSTFILE, encoding="utf-8") as file:
        listed = [line.split()[0] for line in file if line.strip()]
    return [next((name for name in listed if name in pod.names), pod.names[0]) for pod in gang.pods]


def _reap() -> Iterator[Tuple[int, int, str]]:
    """Pid, exit code and name of every child that has ended."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None:
            return
        name = processes.name_of(found.si_pid)  # as long as it is a zombie
        pid, status = os.waitpid(found.si_pid, 0)
        yield pid, os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status), name


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it has just ended


def _asked_to_end() -> bool:
    return signal.SIGTERM in signal.sigpending()


def _rank(argv: List[str]) -> int:
    """Put the node's environment back, and go on as the shim of the rank that mpirun has counted."""
    node, rank = int(os.environ["ALLRANKS_NODE"]), int(os.environ["OMPI_COMM_WORLD_RANK"])
    found = processes.environment(int(os.environ[NODE_PROCESS]))
    if not found:
        raise OSError(f"rank {rank}: the launcher process of node {node} is gone")
    own = {name: value for name, value in os.environ.items() if name.startswith(MPIS_OWN)}
    os.environ.clear()
    os.environ.update(own)
    os.environ.update((os.fsdecode(name), os.fsdecode(value)) for name, value in found.items())
    os.environ["RANK"] = str(rank)
    right = load(os.environ[shim.PLAN]).node_of(rank)
    if right != node:
        raise OSError(f"mpirun put rank {rank} on node {node}, and not on node {right}: it did not follow its hostfile")
    return shim.main(argv)
