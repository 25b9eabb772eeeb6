"""Stands in for PID 1: starts the zygote and the agents, keeps them alive, and leaves nothing behind.

On this machine it has all nodes of the run; on every other engine one, the one that it runs on. It holds what must
outlive an agent that is killed: the coordinator's port, the zygote with all that it imported, and the lock that says
the run lives.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from typing import Dict, List, Optional, Sequence, Tuple

from allranks.node import container, needs, processes
from allranks.node.cancel import EXIT_TERMINATED, read_cancel, write_cancel
from allranks.node.cause import utc
from allranks.node.death import signal_name
from allranks.node.entry import entry
from allranks.node.environment import base_environment
from allranks.node.files import say, write_whole
from allranks.node.fork import interpreter
from allranks.node.gang import Gang, load
from allranks.node.place import ROOT, NoPlace, find_place
from allranks.node.record import read_record, reserve, write_record
from allranks.node.relay import Relay
from allranks.node.status import Status
from allranks.node.verdict import EXIT_CANTCREAT, EXIT_GIVEN_UP

BACKLOG = 1024
RESPAWN_PAUSE = 0.5
BARREN, YOUNG = 3, 60.0
"""How many zygotes in a row may fail, each in its first seconds, before one is started that imports nothing: an import
may break them, or take more memory than there is."""
CANCEL_MARGIN = 10.0
LAST_WORDS = 2.0
RELAY_WAIT = 5.0
STOPPED_POLL = 0.5
EXIT_BROKE = 70


def log(text: str) -> None:
    say(f"{time.strftime('%H:%M:%S')} init: {text}")


class Init:
    """Supervises one zygote and the agents of ``nodes`` until the agents are done."""

    def __init__(self, gang: Gang, plan: str, lifeline: Optional[int], nodes: Sequence[int]) -> None:
        self.gang, self._plan, self._lifeline, self._nodes = gang, plan, lifeline, nodes
        self._agents: Dict[int, subprocess.Popen[bytes]] = {}
        self._born: Dict[int, float] = {}
        self._stopped: Dict[int, float] = {}
        self._zygote: Optional[subprocess.Popen[bytes]] = None
        self._barren = 0
        self._began = time.monotonic()
        self._end_by: Optional[float] = None
        self._cancelled = False
        self._code = 0
        self._zygote_name = f"allranks-{os.urandom(8).hex()}"
        self._relays = [] if gang.engine == "local" else [Relay(gang, node) for node in nodes]

    # ---- set-up

    def run(self) -> int:
        """Until the agents are done; in a container the exit code is its agent's, which the engine goes by."""
        processes.become_subreaper()
        wake = self._catch_signals()
        self._port = self._listen() if 0 in self._nodes else None
        self._forks = self._listen_for_agents()
        self._ours, self._zygotes_lifeline = _pipe()
        for relay in self._relays:
            relay.start()
        self._start_zygote()
        for node in self._nodes:
            self._start_agent(node)
        try:
            while self._agents:
                self._wait(wake)
                if self._cancelled:
                    self._end_agents()
                self._reap()
                self._kill_stopped()
                self._enforce_end()
        finally:
            self._clean_up()
        return 0 if self.gang.engine == "local" else self._code

    def _catch_signals(self) -> int:
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_end)
        return reading

    def _listen(self) -> socket.socket:
        """The coordinator's port stays open while its agent is replaced: nobody is refused in between."""
        host = self.gang.coordinator if self.gang.engine == "local" else ""  # its own name may not resolve yet
        if host:
            _must_be_up(host)
        listening = socket.create_server((host, self.gang.port), backlog=BACKLOG)
        self.gang = replace(self.gang, port=listening.getsockname()[1])
        with open(self._plan, encoding="utf-8") as file:
            plan = json.load(file)
        plan["port"] = self.gang.port
        write_whole(self._plan, json.dumps(plan))
        return listening

    def _listen_for_agents(self) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listening.bind("\0" + self._zygote_name)
        listening.listen(max(16, len(self._nodes)))
        return listening

    # ---- children

    def _start_zygote(self) -> None:
        env = base_environment(self.gang, os.environ)
        python, config = (
            interpreter.bare(self.gang, self._barren)
            if self._barren >= BARREN
            else interpreter.command_line(self.gang, env)
        )
        config.update(listen=self._forks.fileno(), lifeline=self._ours)
        self._born[-1] = time.monotonic()
        self._zygote = subprocess.Popen(
            [*python, entry(), "zygote", json.dumps(config)],
            pass_fds=[self._forks.fileno(), self._ours], env=env, cwd=self.gang.workdir,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def _start_agent(self, node: int, earlier: str = "") -> None:
        """Tell the agent how the one before it ended, and when all began (monotonic): nobody else can know."""
        argv = [sys.executable, "-S", entry(), "agent", self._plan, self._zygote_name]
        fds = [self._port.fileno()] if node == 0 and self._port is not None else []
        env = {**os.environ, **self._place(node), "ALLRANKS_EARLIER": earlier, "ALLRANKS_BEGAN": str(self._began)}
        path = os.path.join(self.gang.state, "logs", f"agent-{node}.log")
        self._born[node] = time.monotonic()
        with open(path, "ab") as out:
            self._agents[node] = subprocess.Popen(
                argv + [str(fd) for fd in fds], pass_fds=fds, env=env,
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip

    def _place(self, node: int) -> Dict[str, str]:
        """What the node reads its place from: ours, or what the engine says, or the one that it pretends to be of."""
        if self.gang.engine != "local":
            return {}  # it is in the environment of the container
        if self.gang.pods:
            pod, root = self.gang.pods[node], self.gang.root_of(node)
            pod.lay_out(root)
            return {**pod.environment(root), ROOT: root}
        return {
            "ALLRANKS_NODE": str(node), "ALLRANKS_NODES": str(self.gang.nodes),
            "ALLRANKS_COORDINATOR": self.gang.coordinator,
        }  # fmt: skip

    def _reap(self) -> None:
        for node, agent in list(self._agents.items()):
            code = agent.poll()
            if code is None:
                continue
            del self._agents[node]
            stopped = self._stopped.pop(node, None)
            if code < 0 and self._end_by is None:
                how = f"was killed by {signal_name(-code)}"
                if stopped is not None:
                    how = f"was stopped for {time.monotonic() - stopped:.0f} s, and killed for that"
                log(f"the agent of node {node} {how}; starting it again")
                self._pace(node)
                self._start_agent(node, how)
            else:
                self._code = code if code >= 0 else 128 - code
            if node == 0 and node not in self._agents:
                self._must_end_by(time.monotonic() + LAST_WORDS)
        if self._zygote is not None and self._zygote.poll() is not None and self._agents:
            log(f"the zygote ended with {self._zygote.returncode}; starting it again")
            failed = self._zygote.returncode != 0 and time.monotonic() - self._born[-1] < YOUNG
            self._barren = self._barren + 1 if failed else 0
            processes.kill_descendants(os.getpid(), keep={agent.pid for agent in self._agents.values()})
            self._pace(-1)
            self._start_zygote()
        processes.reap_orphans(keep=self._children())

    def _kill_stopped(self) -> None:
        """An agent that stays stopped for its lease has lost its seat: a new one can take it, this one never would."""
        for node, agent in self._agents.items():
            if not processes.is_stopped(agent.pid):
                self._stopped.pop(node, None)
            elif time.monotonic() > self._stopped.setdefault(node, time.monotonic()) + self.gang.lease:
                agent.kill()

    def _children(self) -> List[int]:
        known = [agent.pid for agent in self._agents.values()]
        return known + ([self._zygote.pid] if self._zygote is not None else [])

    def _pace(self, node: int) -> None:
        """A child that dies as soon as it starts must not make a busy loop."""
        if time.monotonic() - self._born[node] < RESPAWN_PAUSE:
            time.sleep(RESPAWN_PAUSE)

    # ---- waiting and ending

    def _wait(self, wake: int) -> None:
        watched = [wake] + ([self._lifeline] if self._lifeline is not None else [])
        timeout = None if self._end_by is None else max(0.0, self._end_by - time.monotonic())
        if self._stopped:
            timeout = min(STOPPED_POLL, STOPPED_POLL if timeout is None else timeout)
        readable, _, _ = select.select(watched, [], [], timeout)
        if wake in readable:
            os.read(wake, 4096)
        if self._lifeline in readable:
            self._read_lifeline()

    def _read_lifeline(self) -> None:
        """The command line lets go (a byte), or has died (end of file): then the run ends with it."""
        assert self._lifeline is not None
        letting_go = bool(os.read(self._lifeline, 1))
        os.close(self._lifeline)
        self._lifeline = None
        if not letting_go:
            write_cancel(self.gang.state, "the command line that had started it went away", EXIT_TERMINATED)
            self._cancelled = True

    def _on_end(self, number: int, frame: object) -> None:
        """The loop does what follows, once: a signal may come before there are agents, or while one is started."""
        self._cancelled = True

    def _end_agents(self) -> None:
        if self._end_by is None:
            self._must_end_by(time.monotonic() + self.gang.grace + CANCEL_MARGIN)
            for agent in self._agents.values():
                agent.send_signal(signal.SIGTERM)

    def _must_end_by(self, moment: float) -> None:
        """The run is over: whoever has not ended by then is killed."""
        self._end_by = min(moment, self._end_by or moment)

    def _enforce_end(self) -> None:
        if self._end_by is not None and time.monotonic() > self._end_by:
            log("the agents did not end in time; killing them")
            for agent in self._agents.values():
                agent.kill()
            for agent in self._agents.values():
                agent.wait()
            self._agents.clear()

    def _clean_up(self) -> None:
        """End the zygote and everything below, then see that the record says how it ended."""
        os.close(self._zygotes_lifeline)
        processes.kill_descendants(os.getpid())
        if 0 in self._nodes:
            self._complete_record()
        for relay in self._relays:
            relay.finish(RELAY_WAIT)

    def _complete_record(self) -> None:
        status = read_record(self.gang.state) or Status(self.gang.run, self.gang.engine)
        if not status.is_over:
            status.ended = utc()
            if self._cancelled:
                status.end("cancelled", *read_cancel(self.gang.state))
            else:
                status.end("failed", "its agents ended without a verdict; see logs/agent-*.log", EXIT_BROKE)
            try:
                write_record(self.gang.state, status)
            except OSError as error:
                log(f"cannot record the end of the run: {error.strerror}")


def _must_be_up(host: str) -> None:
    """Raise OSError where nobody could ever reach this machine's own address, though it can be listened on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # it sends nothing
        try:
            probe.connect((host, 9))
        except OSError as error:
            said = f"{host}, an address of this machine, cannot be reached: {error.strerror}"
            raise OSError(error.errno, f"{said}; bring its loopback up: ip link set lo up") from error


def _pipe() -> Tuple[int, int]:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    return reading, writing


def take_lock(state: str) -> int:
    """Hold the lock that says this run lives; the kernel lets it go when this process ends, however it ends.

    A POSIX lock, because it belongs to the process: children that inherit the descriptor do not hold it.
    """
    lock = os.open(os.path.join(state, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()} {processes.start_time(os.getpid())}\n".encode())
    return lock


def main(argv: List[str]) -> int:
    """``init PLAN [--lifeline FD]``."""
    gang = load(argv[0])
    if gang.engine != "local":
        return _in_container(gang, argv[0])
    lifeline = int(argv[2]) if argv[1:2] == ["--lifeline"] else None
    try:
        take_lock(gang.state)
        reserve(gang.state, gang.world_size)
        return Init(gang, argv[0], lifeline, range(gang.nodes)).run()
    except OSError as error:
        log(_cannot_start(gang, error))
    return EXIT_CANTCREAT


def _in_container(gang: Gang, mounted: str) -> int:
    """The one node that this container is, unless it has given up before."""
    node = None
    try:
        container.take_environment()
        if container.gave_up(gang):
            log("this container has given up the run before it was started again")
            return EXIT_GIVEN_UP
        node = find_place(gang.engine, gang.nodes, os.environ).node
        gang = container.lay_out(gang, mounted)
        needs.check(gang, os.environ)
        take_lock(gang.state)
        reserve(gang.state, gang.world_size)
        code = Init(gang, container.plan_of(gang), None, [node]).run()
        if code == EXIT_GIVEN_UP:
            container.give_up(gang)
        return code
    except NoPlace as error:
        code, why = EXIT_GIVEN_UP, f"cannot tell which node this is: {error} (read as engine {gang.engine})"
    except needs.Lacking as error:
        code, why = EXIT_GIVEN_UP, f"the image is not one for these ranks: {error}"
    except OSError as error:
        code, why = EXIT_CANTCREAT, _cannot_start(gang, error)
    log(why)
    try:
        container.leave_reason(gang, node, why, code)
    except OSError as error:
        log(f"cannot leave that in {gang.termination}: {error}")
    return code


def _cannot_start(gang: Gang, error: OSError) -> str:
    if isinstance(error, BlockingIOError):
        return f"a run named {gang.run} is alive: its lock is held"
    return f"cannot start: {error}"
