"""The ranks that one node holds: started through the zygote, ended with all that they left."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import json
import os
import secrets
import shutil
import signal
import socket
import time
from dataclasses import replace
from typing import Callable, Dict, List, Optional, Set

from allranks.node import processes
from allranks.node.death import describe
from allranks.node.environment import base_environment
from allranks.node.fork import interpreter, preload, pycommand
from allranks.node.fork.channel import Channel, Event
from allranks.node.gang import Gang
from allranks.node.launch import deepspeed, mpirun, native, once, torchrun
from allranks.node.launch.spawn import Spawn, Start
from allranks.node.logs import INTERVAL, LogKeeper
from allranks.node.memory import Memory
from allranks.node.proof import Prover
from allranks.node.watch.sampler import Sampler

LAUNCHERS: Dict[str, Callable[[Gang, int, Start], List[Spawn]]] = {
    "native": native.spawns, "once": once.spawns, "torchrun": torchrun.spawns, "deepspeed": deepspeed.spawns,
    "mpirun": mpirun.spawns,
}  # fmt: skip
KILL_WAIT = 10.0
LAST_SWEEP = 0.3
SETTLED = 2.0
LAUNCHER = -1
LAUNCHER_WAIT = 3.0
AT_ONCE = 5.0
FAILED = 1 << 8  # the wait status of exit code 1


class Ranks:
    """Tells the coordinator, through ``tell``, of starts (``started``), ends (``exit``) and readiness (``ready``)."""

    def __init__(self, gang: Gang, node: int, zygote: str, tell: Callable[..., None]) -> None:
        self.gang, self.node, self._tell = gang, node, tell
        self._channel = Channel(zygote, self._on_event)
        self.ready, self.waiting_for = False, "starting the interpreter"
        self.command = -1 if gang.stays else 0
        self._zygotes_argv: Optional[List[str]] = None
        self._becoming = False
        self._start: Optional[Start] = None
        self._alive: Dict[int, int] = {}
        self._reported: Set[int] = set()
        self._asked = self._killed = False
        self._passed_on = 0
        self._gone = asyncio.Event()
        self._swept = asyncio.Event()
        self._logs = LogKeeper(gang, node, self._note)
        self._memory = Memory(lambda: self._alive)
        self._prover = Prover(gang, node, tell, lambda: self._alive)
        self.sampler = Sampler(gang, node, tell, lambda: self._alive)
        self._report_name = f"allranks-{secrets.token_hex(8)}"

    # ---- the zygote

    def open(self) -> None:
        """Attach to the zygote; ``ready`` follows once it has imported what it should."""
        self._listen_to_shims()
        self.sampler.open()
        self._keeping_logs = asyncio.ensure_future(self._keep_logs())
        self._memory.open()
        self._prover.open()
        self._attach()

    def _attach(self) -> None:
        self._channel.open(self.node)
        self.waiting_for = "importing what its ranks need"

    @property
    def alive(self) -> bool:
        return bool(self._alive)

    def _on_event(self, event: Optional[Event]) -> None:
        if event is None:
            self._zygote_died()
            return
        handler = {
            "ready": self._on_ready, "error": self._on_error, "spawned": self._on_spawned, "exit": self._on_exit,
            "swept": self._on_swept,
        }[event["event"]]  # fmt: skip
        handler(event)

    def _on_ready(self, event: Event) -> None:
        self._zygotes_argv = event["argv"]
        self._fit_zygote()
        if event.get("poisoned"):
            self._note(f"ranks are started afresh, not forked: {event['poisoned']}")
        if event.get("culprit") and self.gang.launcher == "native":
            preload.forget(self.gang.learned, self.gang.argv, self.gang.workdir, event["culprit"], self._environment)

    def take(self, gang: Gang, command: int) -> None:
        """Make ready for another command, which ``gang`` has; ``ready`` follows."""
        if not pycommand.same_program(gang.argv, self.gang.argv, gang.workdir):
            self._passed_on = 0
            with contextlib.suppress(FileNotFoundError):
                os.unlink(native.learned_path(gang, self.node))
        self.gang, self.command = gang, command
        self._fit_zygote()

    def _fit_zygote(self) -> None:
        """Say ready, once the zygote is one for this command: it may have to become that first."""
        if self._zygotes_argv is None:
            return  # it is still importing
        python = interpreter.find(self.gang, self._environment)
        self.ready = python is None or pycommand.same_program(self.gang.argv, self._zygotes_argv, self.gang.workdir)
        if self.ready:
            self.waiting_for = ""
            self._tell(type="ready", ready=True, command=self.command)
        else:
            self._becoming = True
            self._channel.become(*interpreter.command_line(self.gang, self._environment))

    def _on_error(self, event: Event) -> None:
        """It stays what it was: ranks are started afresh, and say themselves what is wrong."""
        self._note(f"the zygote: {event['message']}")
        self._becoming = False
        if not self.ready:
            self._zygotes_argv = list(self.gang.argv)
            self._fit_zygote()

    def _on_spawned(self, event: Event) -> None:
        self._alive[event["rank"]] = event["pid"]
        if event.get("why"):
            self._note(f"ranks are started afresh, not forked: {event['why']}")
        if event["rank"] != LAUNCHER:
            self._say_started()

    def _on_exit(self, event: Event) -> None:
        rank = event["rank"]
        self._prover.look_at_the_end()
        self._alive.pop(rank, None)
        if rank == LAUNCHER:
            self._launcher_ended(event)
        else:
            self._note_what_stays(rank, event)
            self._report_end(rank, event["status"], event.get("error", ""), used=event["maxrss_kb"] * 1024)
        if not self._alive:
            self._gone.set()

    def _on_swept(self, event: Event) -> None:
        self._swept.set()

    def _zygote_died(self) -> None:
        """Its ranks went with it. Attach to the next one, which init is starting."""
        for rank in list(self._alive):
            self._alive.pop(rank)
            if rank != LAUNCHER:
                self._report_end(rank, signal.SIGKILL, "with the zygote that had forked it")
        self._gone.set()
        self._swept.set()
        self.ready, self._zygotes_argv = False, None
        why = "importing what the command needs" if self._becoming else "starting the interpreter again"
        self._becoming = False
        self._tell(type="ready", ready=False, waiting_for=why, command=self.command)
        self._attach()

    def _note(self, text: str) -> None:
        self._tell(type="note", text=text)

    # ---- start and end

    def start(self, start: Start) -> None:
        """Start this node's ranks of an attempt."""
        self._asked, self._killed, self._reported = False, False, set()
        self._gone.clear()
        self._start = Start(start.attempt, start.address, start.port, shim=self._report_name)
        self._make_room_for_logs(start.attempt)
        self.sampler.begin(start.attempt)
        self._logs.begin(start.attempt)
        self._memory.begin()
        self._prover.begin(start.attempt)
        self._began = time.monotonic()
        for spawn in LAUNCHERS[self.gang.launcher](self.gang, self.node, self._start):
            self._alive[LAUNCHER if spawn.rank is None else spawn.rank] = 0
            watched = replace(spawn, environment={**spawn.environment, **self.sampler.environment})
            self._channel.spawn(watched, self.gang.workdir)
        if self.gang.launcher == "native":
            self._learning = asyncio.ensure_future(self._learn(start.attempt))

    def _make_room_for_logs(self, attempt: int) -> None:
        folder = os.path.dirname(self.gang.log_of(attempt, 0))
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:  # the ranks will end because of it, and say so
            self._note(f"cannot make the folder of the logs {folder}: {error.strerror}")

    async def _keep_logs(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            self._logs.look()

    def _say_started(self) -> None:
        assert self._start is not None
        pids = {str(rank): pid for rank, pid in self._alive.items() if pid and rank != LAUNCHER}
        self._tell(type="started", attempt=self._start.attempt, pids=pids)

    def _report_end(self, rank: int, status: int, error: str, log: str = "", used: int = 0) -> None:
        """Tell of a rank's end once. ``log`` is where it left its last words, its own log unless given.

        ``used`` is the most memory in bytes that it held, where that is known.
        """
        if self._start is None or rank in self._reported:
            return
        self._reported.add(rank)
        attempt = self._start.attempt
        log = log or self.gang.log_of(attempt, rank)
        death = describe(rank, self.node, status, log, error, self._asked and not self._is_from_outside(status))
        death = self._memory.explain(death, used)
        if death.signal == "SIGTERM" and not death.asked and self._starts_ranks_itself:
            death = replace(death, message=f"{death.message}, which allranks had not sent")
        if death.kind == "import":
            death = replace(death, message=f"{death.message} (with {self._python()})")
        self._tell(type="exit", attempt=attempt, death=death.to_json())

    def _note_what_stays(self, rank: int, event: Event) -> None:
        """A rank that puts itself into the background looks as if it were done at once."""
        seconds = time.monotonic() - self._began
        if event["status"] or self._asked or seconds > AT_ONCE:
            return
        mark = {b"RANK": str(rank).encode(), b"ALLRANKS_RUN": self.gang.run.encode()}
        for process in processes.running():
            if process.is_alive and (
                process.session == event["pid"] or mark.items() <= processes.environment(process.pid).items()
            ):
                self._note(
                    f"rank {rank} ended with 0 after {seconds:.1f} s and left process {process.pid} running, which is "
                    "ended with the attempt: a rank must stay in the foreground"
                )
                return

    def _is_from_outside(self, status: int) -> bool:
        """A rank that is killed while it was only asked to end; foreign launchers do that to theirs on their own."""
        return status == signal.SIGKILL and not self._killed and self._starts_ranks_itself

    @property
    def _starts_ranks_itself(self) -> bool:
        return self.gang.launcher in ("native", "once")

    def _python(self) -> str:
        """Which interpreter lacked the module: most often it is not the one that the user thinks of."""
        name = self.gang.argv[0]
        return shutil.which(name, path=self._environment.get("PATH")) or name

    async def launcher_ends(self) -> None:
        """Wait until a foreign launcher has ended by itself, all of its ranks having ended well."""
        if LAUNCHER in self._alive:
            await _wait(self._gone, LAUNCHER_WAIT)

    async def stop(self, grace: float, *, for_good: bool = False) -> None:
        """SIGTERM, at most ``grace`` seconds, SIGKILL; then whatever the ranks left behind.

        Where it is ``for_good`` init ends all that is left, so a zygote that is busy importing is not waited for.
        """
        self._asked = True
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, KILL_WAIT)):
            if self._alive and seconds:
                self._killed = number == signal.SIGKILL
                self._channel.signal(number)
                await _wait(self._gone, seconds)
        self._swept.clear()
        if self._channel.is_open:
            self._channel.sweep()
            await _wait(self._swept, LAST_SWEEP if for_good else KILL_WAIT)
        self._logs.look()
        self._remove_shared_memory()
        self._pass_on_learned()

    def _remove_shared_memory(self) -> None:
        """DeepSpeed's CPU all-reduce leaves 69 MB a rank in /dev/shm after every end."""
        if self._start is not None:
            pattern = f"/dev/shm/deepspeed_allreduce_buffer_{os.getuid()}_{self._start.address}_{self._start.port}_*"
            for path in glob.glob(pattern):
                try:
                    os.unlink(path)
                except OSError:
                    pass  # another node's agent on this machine was faster

    # ---- ranks that a foreign launcher makes

    def _listen_to_shims(self) -> None:
        reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        reports.bind("\0" + self._report_name)
        reports.setblocking(False)
        asyncio.get_running_loop().add_reader(reports, self._read_report, reports)

    def _read_report(self, reports: socket.socket) -> None:
        try:
            report = json.loads(reports.recv(4096))
            rank, attempt, pid = int(report["rank"]), int(report["attempt"]), int(report["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            return
        if self._start is None or attempt != self._start.attempt or self.gang.node_of(rank) != self.node:
            return
        if "status" in report:
            self._alive.pop(rank, None)
            self._report_end(rank, int(report["status"]), "", used=int(report.get("maxrss_kb", 0)) * 1024)
        else:
            self._alive[rank] = pid
            self._say_started()
        if not self._alive:
            self._gone.set()

    def _launcher_ended(self, event: Event) -> None:
        """Ranks that did not report have no end of their own: the launcher failed before or around them."""
        assert self._start is not None
        log = self.gang.launcher_log_of(self._start.attempt, self.node)
        for rank in self.gang.ranks_of(self.node):
            self._alive.pop(rank, None)
            self._report_end(rank, event["status"] or FAILED, event.get("error", ""), log)

    # ---- what the ranks really import

    @property
    def _environment(self) -> Dict[str, str]:
        """As the zygote has it: its PATH says which python the list is for."""
        return base_environment(self.gang, os.environ)

    async def _learn(self, attempt: int) -> None:
        """Once the first rank's imports have settled, let the zygote import the same, so that a restart is warm."""
        path = native.learned_path(self.gang, self.node)
        while self._start is not None and self._start.attempt == attempt and self._alive:
            await asyncio.sleep(SETTLED / 2)
            try:
                settled = time.time() - os.path.getmtime(path) > SETTLED
            except OSError:
                continue
            if settled:
                self._pass_on_learned()
                return

    def _pass_on_learned(self) -> None:
        """What the first rank imported, the zygote imports for the next attempt, and at once for the next run."""
        if self.gang.launcher != "native":
            return
        learned = native.learned_path(self.gang, self.node)
        names = preload.read_imports(learned)
        if len(names) == self._passed_on:
            return
        self._passed_on = len(names)
        self._channel.warm(names)
        if self.node == 0:
            preload.remember(self.gang.learned, self.gang.argv, self.gang.workdir, learned, self._environment)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except asyncio.TimeoutError:
        pass  # the caller goes on to the harder means
