"""mpirun starts one agent a node over ssh: the launcher's part, ``over-ssh PLAN``. The nodes' is ``sshd.py``.

The launcher's pod holds no rank. It waits until every node's name is known and its sshd answers, because ssh does not
wait for either, and starts mpirun with the hostfile named: Open MPI 5 does not read the operator's settings of it. A
node that is lost without a word is found by keepalives; then mpirun ends, and is started again as often as the run.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, List, Optional, Tuple

from allranks.node import container, processes
from allranks.node.entry import entry
from allranks.node.files import say, write_whole
from allranks.node.gang import Gang, load
from allranks.node.launch import door
from allranks.node.launch.sshd import KEYS
from allranks.node.verdict import EXIT_CANTCREAT, EXIT_GIVEN_UP

HOSTFILE = "/etc/mpi/hostfile"
POLL, DIAL = 0.2, 2.0
AT_ONCE = 64
SSH = (
    "-o ConnectionAttempts=10 -o ServerAliveInterval=2 -o ServerAliveCountMax=3 "
    "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
)
"""ssh's defaults would notice nothing of a node that lost its power, and ask whether to trust a host."""
OWN_KEYS = f" -p {door.PORT} -i {KEYS}/id_rsa"
"""For a user who is not root, whose sshd has no other port and whose keys are not in a home."""
DAEMON_KEEPALIVE = {"oob_tcp_keepalive_time": "2", "oob_tcp_keepalive_intvl": "2", "oob_tcp_keepalive_probes": "3"}
"""Open MPI 4's defaults notice it after some eight minutes."""
PASSED_ON = ("ALLRANKS_COORDINATOR", "PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
"""What must be known before the agent can put the container's own environment back."""


def log(text: str) -> None:
    say(f"{time.strftime('%H:%M:%S')} over-ssh: {text}")


def main(argv: List[str]) -> int:
    """``over-ssh PLAN``: until the run is over; its exit code is that of the agents."""
    gang = load(argv[0])
    if container.gave_up(gang):
        log("this container has given up the run before it was started again")
        return EXIT_GIVEN_UP
    try:
        os.makedirs(gang.state, exist_ok=True)
        os.makedirs(os.environ.get("TMPDIR", gang.state), exist_ok=True)
        code = _run(gang, hosts(gang))
        if code == EXIT_GIVEN_UP:
            container.give_up(gang)
        return code
    except OSError as error:
        log(f"cannot start: {error}")
        container.leave_reason(gang, None, f"cannot start: {error}", EXIT_CANTCREAT)
        return EXIT_CANTCREAT


def hosts(gang: Gang) -> List[str]:
    """The hostfile's names, in the order of the nodes. Raises OSError when they are not as many as the plan says."""
    with open(HOSTFILE, encoding="utf-8") as file:
        found = [line.split()[0].partition(":")[0] for line in file if line.strip() and not line.startswith("#")]
    if len(found) != gang.nodes:
        raise OSError(f"{HOSTFILE} lists {len(found)} hosts, but the gang has {gang.nodes} nodes")
    return found


def _run(gang: Gang, names: List[str]) -> int:
    hostfile, kind = os.path.join(gang.state, "hostfile"), implementation()
    lines = "".join(f"{name} slots=1\n" if kind.startswith("openmpi") else f"{name}:1\n" for name in names)
    write_whole(hostfile, lines)
    code = 0
    for start in range(gang.restarts + 1):
        await_hosts(names, port_of(names[0]), gang.start_timeout)
        argv, env = command(kind, hostfile, gang.nodes, names[0])
        log(f"mpirun starts {gang.nodes} agents" + (f", for the {start + 1}. time" if start else ""))
        code = _spawn_and_wait(argv, env)
        if code in (0, EXIT_GIVEN_UP):
            break
        log(f"mpirun ended with {code}, which is not what the agents end with")
    _fetch_last_words(gang, names)
    return code if code in (0, EXIT_GIVEN_UP) else EXIT_GIVEN_UP


def implementation() -> str:
    """openmpi4, openmpi5, intel or mpich, by what mpirun says of itself. Raises OSError."""
    program = shutil.which("mpirun")
    if program is None:
        raise OSError(f"no mpirun in PATH ({os.environ.get('PATH', '')})")
    said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    if "Open MPI" in said:
        version = said.split("Open MPI)", 1)[-1].strip()
        return "openmpi4" if version.startswith(("1.", "2.", "3.", "4.")) else "openmpi5"
    if "Intel" in said:
        return "intel"
    if "HYDRA" in said.upper():
        return "mpich"
    raise OSError(f"{program} is neither Open MPI's, Intel's nor MPICH's: it says {said.strip()[:80]!r}")


def ssh() -> str:
    """The options of every ssh."""
    return SSH + (OWN_KEYS if os.path.isdir(KEYS) else "")


def command(kind: str, hostfile: str, nodes: int, first: str) -> Tuple[List[str], Dict[str, str]]:
    """The command line that starts one agent on each host, and its environment. ``first`` is where rank 0 runs."""
    env = {**os.environ, "ALLRANKS_COORDINATOR": first}
    agent = ["python3", entry(), "init", f"{os.path.dirname(entry())}/plan.json"]
    passed = [name for name in PASSED_ON if name in env]
    if kind in ("intel", "mpich"):
        env.update({"HYDRA_LAUNCH_EXTRA_ARGS": ssh(), "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": ssh()})
        named = ["-genvlist", ",".join(passed)]
        return ["mpirun", "-f", hostfile, "-ppn", "1", "-n", str(nodes), *named, *agent], env
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    named = [word for name in passed for word in ("-x", name)]
    settings: List[str] = []
    if kind == "openmpi4":
        pairs = {"plm_rsh_args": ssh(), "orte_keep_fqdn_hostnames": "1", **DAEMON_KEEPALIVE}
        pairs["orte_tmpdir_base"] = env.get("TMPDIR", "/tmp")  # of its daemons, whose environment is sshd's
        settings = [word for name, value in pairs.items() for word in ("--mca", name, value)]
    else:
        env.update({"PRTE_MCA_plm_ssh_args": ssh(), "PRTE_MCA_prte_keep_fqdn_hostnames": "1"})
        env["PRTE_MCA_prte_tmpdir_base"] = env.get("TMPDIR", "/tmp")
    return [
        "mpirun", *as_root, *settings, "--hostfile", hostfile, "-np", str(nodes), "--map-by", "ppr:1:node",
        "--bind-to", "none", *named, *agent,
    ], env  # fmt: skip


def port_of(host: str) -> int:
    """Where ssh would dial that host, by its own configuration."""
    said = subprocess.run(
        ["ssh", *ssh().split(), "-G", host], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    ports = [line.split()[1] for line in said.splitlines() if line.startswith("port ")]
    return int(ports[0]) if ports else 22


def await_hosts(names: List[str], port: int, timeout: float) -> None:
    """Wait until every name is known and answers on the port. Raises OSError, saying which do not, and why."""
    give_up, waiting, last = time.monotonic() + timeout, dict.fromkeys(names, "not tried"), ""
    with ThreadPoolExecutor(min(AT_ONCE, len(names))) as pool:
        while waiting:
            tried = list(waiting)
            answers = dict(zip(tried, pool.map(lambda name: _why_silent(name, port), tried)))
            waiting = {name: why for name, why in answers.items() if why}
            if not waiting:
                return
            name, why = next(iter(waiting.items()))
            now = f"waiting for {len(waiting)} of {len(names)} nodes: {name}: {why}"
            if time.monotonic() > give_up:
                raise OSError(f"{now}, for {timeout:g} s")
            if now != last:
                log(now)
                last = now
            time.sleep(POLL)


def _why_silent(name: str, port: int) -> str:
    try:
        with socket.create_connection((name, port), DIAL):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _spawn_and_wait(argv: List[str], env: Dict[str, str]) -> int:
    running: Optional[subprocess.Popen[bytes]] = None

    def pass_on(number: int, frame: object) -> None:
        if running is not None:
            running.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    processes.become_subreaper()
    running = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL)
    code = running.wait()
    processes.kill_descendants(os.getpid())
    return code if code >= 0 else 128 - code


def _fetch_last_words(gang: Gang, names: List[str]) -> None:
    """Have the run's record here too: the operator deletes the workers' pods, and this one stays."""
    for name in names[:3] if gang.termination else []:
        argv = ["ssh", *ssh().split(), name, "cat", gang.termination]
        said = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False).stdout
        if said.startswith(b"{"):
            with open(gang.termination, "wb") as file:
                file.write(said[:4096])
            return
