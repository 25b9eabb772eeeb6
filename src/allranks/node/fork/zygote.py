"""The zygote: the user's own interpreter that imports once, then forks ranks in milliseconds.

Started twice under one pid: first as a file, ``python .../node/__main__.py zygote CONFIG``, which becomes the
user's command line with hook/sitecustomize.py in front of it. Agents connect to its socket (see docs/protocol.md);
the ranks are its children and never outlive it.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shutil
import signal
import socket
import sys
import traceback
from typing import Any, List, NoReturn, Optional

from allranks.node import processes
from allranks.node.entry import entry
from allranks.node.fork import preload, pycommand, rank
from allranks.node.fork.caller import Caller, Message, accept
from allranks.node.fork.children import Children
from allranks.node.fork.warm import ENDING, Warm

NODE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HOOK = os.path.join(NODE, "hook")
HOME = os.path.dirname(os.path.dirname(NODE))
SOFTWARE_ERROR = 70


class Zygote:
    """Serves agents until the lifeline ends. ``why`` says why this one can only exec; then nothing is imported."""

    def __init__(self, config: Message, why: str = "") -> None:
        self.pid = os.getpid()
        self._why = why
        self._argv = tuple(config.get("argv") or ())
        self._env = dict(os.environ)
        self._cwd = os.getcwd()
        self._path0: Optional[str] = config.get("path0")
        self._listening = socket.socket(fileno=config["listen"])
        self._lifeline: int = config["lifeline"]
        self._callers: List[Caller] = []
        self._children = Children()
        self._warm = Warm(self._look, self._roots(), config.get("bytecode"))
        self._warm.want(() if why else _preload(config))
        self._scan: Optional[preload.Scan] = None
        self._pumping = self._must_sweep = False
        self._title = processes.Title()

    def _roots(self) -> List[str]:
        """List the job's own entries of ``sys.path``."""
        return [*filter(None, [self._path0]), *preload.pythonpath(self._env, self._cwd)]

    # ---- the process

    def serve(self) -> None:
        """Import, then answer for ever. Returns in forked ranks only."""
        self._set_up()
        while self._warm.is_waiting:
            self._warm.import_next()
        while not self._work():
            if self._warm.is_waiting:
                self._warm.import_next()
            else:
                self._wait()

    def _set_up(self) -> None:
        gc.disable()
        processes.become_subreaper()
        self._listening.setblocking(False)
        for fd in (self._listening.fileno(), self._lifeline):
            os.set_inheritable(fd, False)
        self._catch_signals()
        processes.die_with_parent(signal.SIGTERM)
        self._title.cover("allranks-zygote")
        # Else importing triton or torch._dynamo runs cuInit, and no child could use CUDA.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        if self._path0:
            sys.path.insert(0, self._path0)  # a checkout there must win over site-packages, as in the rank

    def _catch_signals(self) -> None:
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._handlers = {number: signal.getsignal(number) for number in (signal.SIGCHLD, *ENDING)}
        signal.signal(signal.SIGCHLD, lambda number, frame: self._look())
        for ending in ENDING:
            signal.signal(ending, lambda number, frame: self._end())

    def _look(self) -> None:
        """In a signal handler: deal with deaths, signals and lost agents even in the midst of an import.

        Outside of imports the main loop does it, woken through the pipe: so this never interrupts the loop's own work.
        """
        if self._warm.importing and not self._pumping:
            self._pump()

    def _end(self) -> NoReturn:
        processes.kill_descendants(self.pid)
        os._exit(0)  # at once: an interpreter with torch in it takes a quarter of a second to fold

    def _wait(self) -> None:
        reading: List[Any] = [self._wake, self._listening, self._lifeline, *(c.socket for c in self._callers)]
        readable, _, _ = select.select(reading, [c.socket for c in self._callers if c.is_behind], [])
        if self._wake in readable:
            os.read(self._wake, 4096)

    # ---- agents

    def _work(self) -> bool:
        """Answer everything that was asked; True in a forked rank."""
        self._pump()
        for caller in list(self._callers):
            while caller.asked and not self._must_import_before(caller.asked[0]):
                if self._do(caller, caller.asked.popleft()):
                    return True
        if self._must_sweep and not self._children:
            self._must_sweep = False
            self._children.sweep(None)
        self._answer_attaching()
        return False

    def _must_import_before(self, message: Message) -> bool:
        """Once here is cheaper than once in each rank: what is still to be imported was seen in ranks."""
        return message["op"] == "spawn" and self._warm.is_waiting

    def _pump(self) -> None:
        """Do what may be done at any moment."""
        self._pumping = True
        try:
            if select.select([self._lifeline], [], [], 0)[0]:
                self._end()
            self._callers += accept(self._listening)
            for caller in list(self._callers):
                caller.receive()
                caller.flush()
                while caller.asked and caller.asked[0]["op"] == "signal":
                    self._do(caller, caller.asked.popleft())
                if caller.gone:
                    self._let_go(caller)
            self._children.reap(ranks_only=self._warm.importing)
        finally:
            self._pumping = False

    def _let_go(self, caller: Caller) -> None:
        """Leave no rank of an agent that is gone."""
        caller.socket.close()
        self._callers.remove(caller)
        self._children.signal(caller, signal.SIGKILL)
        self._must_sweep = True

    def _do(self, caller: Caller, message: Message) -> bool:
        handle = {
            "attach": self._attach, "spawn": self._spawn, "signal": self._signal, "sweep": self._sweep,
            "warm": self._want, "become": self._become_another,
        }.get(str(message["op"]))  # fmt: skip
        try:
            if handle is None:
                raise ValueError("no such op")
            return handle(caller, message) is True
        except (KeyError, TypeError, ValueError) as error:
            text = f"cannot {message['op']}: {type(error).__name__}: {error}"
            caller.send({"event": "error", "message": text})
            return False

    def _attach(self, caller: Caller, message: Message) -> None:
        caller.node, caller.attaching = int(message["node"]), True
        for other in self._callers:
            if other is not caller and other.node == caller.node:
                self._children.signal(other, signal.SIGKILL)

    def _answer_attaching(self) -> None:
        """Once the ranks are gone that an earlier agent of the node had left."""
        for caller in self._callers:
            if caller.attaching and not self._children.has_ranks_of(caller.node, except_for=caller):
                caller.attaching = False
                caller.send(self._ready())

    def _ready(self) -> Message:
        warm = self._warm
        return {
            "event": "ready", "threads": len(os.listdir("/proc/self/task")), "poisoned": warm.poisoned,
            "preloaded": warm.count, "failed": warm.failed, "seconds": round(warm.seconds, 3),
            "culprit": warm.culprit, "argv": list(self._argv),
        }  # fmt: skip

    def _become_another(self, caller: Caller, message: Message) -> None:
        """Be the zygote of another command, under the same pid; no rank is left when this is asked."""
        python = [str(word) for word in message["python"]]
        config = {**message["config"], "listen": self._listening.fileno(), "lifeline": self._lifeline}
        self._children.sweep(None)
        for fd in (config["listen"], config["lifeline"]):
            os.set_inheritable(fd, True)
        try:
            os.execve(python[0], [*python, entry(), "zygote", json.dumps(config)], self._env)
        except OSError as error:
            raise ValueError(f"{python[0]}: {error.strerror}") from error

    def _want(self, caller: Caller, message: Message) -> None:
        if not self._why:
            self._warm.want([name for name in message["modules"] if isinstance(name, str)])

    def _signal(self, caller: Caller, message: Message) -> None:
        self._children.signal(caller, int(message["signal"]), message.get("rank"))

    def _sweep(self, caller: Caller, message: Message) -> None:
        caller.send({"event": "swept", "killed": self._children.sweep(caller)})

    # ---- ranks

    def _spawn(self, caller: Caller, message: Message) -> bool:
        job = self._job(message)
        why = self._why_exec(job) if message["how"] == "fork" else ""
        how = "fork" if message["how"] == "fork" and not why else "exec"
        report = rank.Report()
        pid = self._children.fork(job, caller, report)
        if pid:
            caller.send({"event": "spawned", "rank": job.rank, "pid": pid, "how": how, "why": why})
        elif pid == 0:
            self._be_rank(job, report, how)
        return pid == 0

    def _be_rank(self, job: rank.Job, report: rank.Report, how: str) -> None:
        """In the child, which must never go on as a second zygote."""
        try:
            self._become(job, report, how)
        except Exception as error:  # noqa: BLE001  whatever it is, it is the end of this process
            report.fail(SOFTWARE_ERROR, f"cannot become rank {job.rank}: {type(error).__name__}: {error}")

    def _job(self, message: Message) -> rank.Job:
        env = {**self._env, **message["set"]}
        for name in message.get("unset", ()):
            env.pop(name, None)
        argv = tuple(message["argv"])
        return rank.Job(int(message["rank"]), argv, env, message["cwd"], message["log"], message.get("learn"))

    def _why_exec(self, job: rank.Job) -> str:
        """Say why a forked rank would not be what a fresh process is; nothing when it would be."""
        why = self._why or self._warm.poisoned or self._warm.unsafe
        if why:
            return why
        if not pycommand.same_program(job.argv, self._argv, self._cwd):
            return "its command line is not the zygote's"
        if os.path.realpath(job.cwd) != os.path.realpath(self._cwd):
            return f"its working folder {job.cwd} is not the zygote's"
        differing = preload.frozen_differences(self._env, job.env)
        if differing:
            return f"{differing[0]} is not as it was for the zygote, and is read when modules are imported"
        if self._scan is None or self._scan.is_stale():
            self._scan = preload.scan(pycommand.parse(self._argv, self._cwd), self._cwd, self._env)
        return self._scan.why

    def _become(self, job: rank.Job, report: rank.Report, how: str) -> None:
        rank.detach(job, report, self.pid)
        self._title.restore()
        signal.set_wakeup_fd(-1)
        if how == "exec":
            rank.replace_by_exec(job, report)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._close(report)
        if self._path0:
            sys.path.remove(self._path0)
        if job.argv != self._argv:
            rank.take_arguments(job.argv, self._argv, self._title)
        rank.settle(job, self._env, self._roots())
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _close(self, report: rank.Report) -> None:
        report.close()
        for fd in (self._wake, self._waker, self._lifeline):
            os.close(fd)
        self._listening.close()
        for caller in self._callers:
            caller.socket.close()
        self._children.close()


def _preload(config: Message) -> List[str]:
    """The names to import: a list, or the file that holds it where it is too long for an argument."""
    wanted = config.get("preload", [])
    if isinstance(wanted, str):
        try:
            with open(wanted, encoding="utf-8") as file:
                wanted = json.load(file)
        except FileNotFoundError:  # the disk was full
            wanted = []
    return [name for name in wanted if isinstance(name, str)]


# -------------------------------------------------------------------------------------------------- the two starts


def main(arguments: List[str]) -> int:
    """``zygote CONFIG``: become the user's command line with the hook in front, or serve as we are."""
    config = json.loads(arguments[0])
    _plain_process()
    why = config.get("why") or _why_not_hooked(config)
    if not why:
        _start_hooked(config)
    Zygote(config, why).serve()
    return 0


def _plain_process() -> None:
    """Default signals, and the standard descriptors open: what a shell gives."""
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    for fd in (1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.dup2(null, fd)
    if null > 2:
        os.close(null)


def _why_not_hooked(config: Message) -> str:
    argv = config.get("argv")
    if not argv:
        return "the zygote was not told the command line (argv in its configuration)"
    command = pycommand.parse(argv)
    if not command.forkable:
        return command.why
    if sys.flags.no_site or sys.flags.ignore_environment or sys.flags.isolated:
        return f"{argv[0]} adds -S, -E or -I, which keep the zygote out"
    if sys.implementation.name != "cpython" or not sys.executable:
        return f"{argv[0]} is {sys.implementation.name}, not CPython"
    return preload.scan(command, os.getcwd(), os.environ).why


def _start_hooked(config: Message) -> NoReturn:
    old = os.environ.get("PYTHONPATH")
    hook = {**config, "home": HOME, "pythonpath": old}
    env = {**os.environ, "ALLRANKS_ZYGOTE": json.dumps(hook), "PYTHONPATH": os.pathsep.join(filter(None, [HOOK, old]))}
    for fd in (config["listen"], config["lifeline"]):
        os.set_inheritable(fd, True)
    os.execve(sys.executable, [_own_name(config["argv"][0]), *config["argv"][1:]], env)


def _own_name(typed: str) -> str:
    """Choose the interpreter's argv[0]: as typed, unless that is a wrapper that starts another program."""
    found = shutil.which(typed)
    if found and os.path.realpath(found) == os.path.realpath(sys.executable):
        return typed
    return sys.executable


def enter(config: Message) -> None:
    """Be the zygote; called by the hook. Returns in forked ranks only."""
    zygote = Zygote(config)
    try:
        zygote.serve()
    except BaseException:
        if os.getpid() != zygote.pid:
            raise
        traceback.print_exc()
        os._exit(SOFTWARE_ERROR)  # never on into the user's script
    rank.forget_ourselves()
