"""Inside each rank: a thread that tells the node's agent where the rank is.

It connects to the agent, then answers one JSON line to each byte it is sent. It looks at what is imported already and
imports nothing itself; the job's ``threading`` does not know of it. Where no thread can answer, because the GIL is
held, faulthandler writes the stacks to a file in memory that the agent holds as well.
"""

from __future__ import annotations

import _thread
import atexit
import faulthandler
import fcntl
import functools
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

SOCKET = "ALLRANKS_WATCH"
BRIEF, FULL = b"b", b"f"
STACK_SIGNAL = signal.SIGRTMIN + 7
HOOK = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "hook")
HIGH = (960, 200, 3)  # our descriptors stay clear of the numbers that the job's own will get
MOST_THREADS, MOST_FRAMES = 64, 60
SEND_SECONDS = 1
THREAD_END = 0.5
C10D = "torch/distributed/distributed_c10d.py"
# Helpers that multiprocessing starts afresh inherit the rank's environment, and are no ranks.
HELPERS = (b"--multiprocessing-fork", b"from multiprocessing.")


def hooked(environment: Mapping[str, str]) -> Dict[str, str]:
    """What a rank that is exec'd gets, so that a python in it starts the thread: see hook/sitecustomize.py."""
    env = dict(environment)
    if SOCKET in env and "RANK" in env:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [HOOK, env.get("PYTHONPATH")]))
    return env


def start(environment: Mapping[str, str]) -> None:
    """Answer the agent that the environment names; do nothing where there is none. Call it in the main thread."""
    name, rank = environment.get(SOCKET), environment.get("RANK", "")
    if not name or not rank.isdigit() or _is_helper():
        return
    try:
        _Watch(name, int(rank), int(environment.get("ALLRANKS_ATTEMPT", "0"))).start()
    except (OSError, ValueError, RuntimeError):
        pass  # a rank that cannot be watched is a rank nevertheless


def _is_helper() -> bool:
    with open("/proc/self/cmdline", "rb") as file:
        line = file.read()
    return any(word in line for word in HELPERS)


class _Watch:
    """The link to the agent, the file for stacks, and the thread, which ends before each fork and at the end.

    A fork must never find it in the midst of an answer, holding some lock; and from Python 3.12 on, os.fork warns a
    job that it has threads.
    """

    def __init__(self, name: str, rank: int, attempt: int) -> None:
        self._main = _thread.get_ident()
        self._thread = 0
        self._forgotten = False
        self._stacks = _stack_file()
        self._waking, self._waker = (_raise_fd(fd) for fd in os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK))
        self._link = _connect(name)
        fds = (self._waking, self._waker, self._link.fileno(), self._stacks)
        self._own = [(fd, _inode(fd)) for fd in fds if fd >= 0]
        self._say_hello(rank, attempt)

    def _say_hello(self, rank: int, attempt: int) -> None:
        number = 0
        if self._stacks >= 0:
            faulthandler.register(STACK_SIGNAL, self._stacks, all_threads=True)
            number = STACK_SIGNAL
        hello = {"rank": rank, "attempt": attempt, "signal": number}
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", self._stacks))] if number else []
        self._link.sendmsg([json.dumps(hello).encode() + b"\n"], rights, socket.MSG_NOSIGNAL)

    def start(self) -> None:
        self._start_thread()
        # From Python 3.13 on, os.fork counts the threads only after it has called what was registered.
        again = _soon(self._start_again) if sys.version_info >= (3, 13) else self._start_again
        os.register_at_fork(before=self._stop, after_in_parent=again, after_in_child=self._forget)
        atexit.register(self._leave)

    # ---- the thread

    def _start_thread(self) -> None:
        """With all signals blocked: the job's handlers must interrupt the job's own thread."""
        runs = _thread.allocate_lock()
        runs.acquire()
        before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        try:
            _thread.start_new_thread(self._serve, (runs,))
            runs.acquire()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _serve(self, runs: Any) -> None:
        self._thread = _thread.get_native_id()
        runs.release()
        try:
            poll = select.poll()
            for fd in (self._waking, self._link.fileno()):
                poll.register(fd, select.POLLIN)
            while all(fd != self._waking for fd, _ in poll.poll()):
                asked = self._link.recv(1)
                if not asked:
                    return
                self._link.sendall(self._answer(asked), socket.MSG_NOSIGNAL)
        except OSError:
            pass  # the agent has gone, or the job closed all descriptors it found
        finally:
            self._thread = 0

    def _answer(self, asked: bytes) -> bytes:
        try:
            answer = full(self._main) if asked == FULL else brief()
        except Exception as error:  # noqa: BLE001  whatever the job's modules hold, the agent must get its line
            answer = {"error": repr(error)[:300]}
        return json.dumps(answer, default=str).encode() + b"\n"

    def _stop(self) -> None:
        """Return when the kernel has forgotten the thread: that is what os.fork counts."""
        thread, until = self._thread, time.monotonic() + THREAD_END
        if not thread:
            return
        try:
            os.write(self._waker, b"x")
            while os.path.exists(f"/proc/self/task/{thread}") and time.monotonic() < until:
                time.sleep(0.0001)
            os.read(self._waking, 1)
        except OSError:
            pass  # descriptors that the job closed: then the thread has ended by itself

    def _leave(self) -> None:
        """At the end of the interpreter, which may take its time: the agent should know, and not wait for answers.

        A thread that an exiting interpreter kills in the midst of C++ aborts the process.
        """
        self._stop()
        self._forgotten = True
        link = self._link.fileno()
        try:
            if (link, _inode(link)) in self._own:  # else the job has closed it, and may have opened its own
                self._link.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the agent has gone

    def _start_again(self) -> None:
        try:
            if not self._thread and not self._forgotten:
                self._start_thread()
        except (OSError, RuntimeError):
            pass  # the interpreter is about to exit

    def _forget(self) -> None:
        """In a forked child of the rank: no thread came along, and nothing else may stay."""
        self._thread, self._forgotten = 0, True  # what was registered for forks is called in its own forks too
        faulthandler.unregister(STACK_SIGNAL)
        self._link.detach()
        for fd, inode in self._own:
            if _inode(fd) == inode:  # the job may have closed it and opened its own
                os.close(fd)


def _stack_file() -> int:
    """-1 where the kernel or this python has no files in memory."""
    try:
        return _raise_fd(os.memfd_create("allranks-stacks"))
    except (AttributeError, OSError):
        return -1


def _connect(name: str) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
    try:
        link.connect("\0" + name)  # SO_SNDTIMEO bounds this as well
    except OSError:
        link.close()
        raise
    return socket.socket(fileno=_raise_fd(link.detach()))


def _raise_fd(fd: int) -> int:
    for lowest in HIGH:
        try:
            high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
        except OSError:
            continue  # the limit of open files is lower
        os.close(fd)
        return high
    return fd


def _inode(fd: int) -> Tuple[int, int]:
    try:
        found = os.fstat(fd)
    except OSError:
        return (-1, -1)
    return (found.st_dev, found.st_ino)


def _soon(call: Callable[[], None]) -> Callable[[], Any]:
    """Give what has the interpreter make the call in the main thread, after the job's next step.

    It is no function in Python itself: the interpreter would make the call in the midst of it.
    """
    import ctypes

    def run(_: Any) -> int:
        call()
        return 0

    made = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(run)
    return functools.partial(ctypes.pythonapi.Py_AddPendingCall, made, None)


# ---- what is answered


def brief() -> Dict[str, Any]:
    """Sums over all process groups: they change when anything moves. ``waits`` when a collective is unfinished."""
    status = _recorded(entries=False).get("pg_status") or {}
    pairs = [(int(s["last_enqueued_collective"]), int(s["last_completed_collective"])) for s in status.values()]
    if pairs:
        entered, completed = (sum(max(0, number) for number in column) for column in zip(*pairs))
        return {"entered": entered, "completed": completed, "waits": any(e > max(0, c) for e, c in pairs)}
    entered, waits = sum(_sequence(group) for _, group, _ in _groups()), _is_in_c10d()
    return {"entered": entered, "completed": entered - (1 if waits else 0), "waits": waits}


def full(main: int) -> Dict[str, Any]:
    """Everything: ``brief``, each process group's last collective, the stacks of all threads, memory in bytes."""
    return {**brief(), "groups": groups(), "threads": stacks(main), "rss": _rss()}


def _recorded(entries: bool) -> Dict[str, Any]:
    """The flight recorder's JSON, of whichever recorder has something; empty where torch has none or it is off."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(c10d, name, None)
        if dump is not None:
            found: Dict[str, Any] = json.loads(dump(includeCollectives=entries))
            if found.get("pg_status") or found.get("entries"):
                return found
    return {}


def _groups() -> List[Tuple[str, Any, List[int]]]:
    """Name, group and members of the process groups that this rank is in."""
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    if world is None:
        return []
    members = dict(world.pg_group_ranks)
    return [(str(name), group, sorted(members.get(group, ()))) for group, name in list(world.pg_names.items())]


def _sequence(group: Any) -> int:
    try:
        return int(group._get_sequence_number_for_group())
    except (RuntimeError, AttributeError):  # this backend has none, or there was no collective yet
        return 0


def groups() -> Dict[str, Dict[str, Any]]:
    """By name, which is the same on all ranks: members, last collective entered, first one unfinished.

    By the recorder's entries where it has some, because its sums and gloo's sequence numbers count sends as well;
    and a group whose entries have left the recorder's ring still has its sequence number.
    """
    entries: Dict[str, List[Dict[str, Any]]] = {}
    for entry in _recorded(entries=True).get("entries") or ():
        if not entry.get("is_p2p"):
            entries.setdefault(str(entry["process_group"][0]), []).append(entry)
    stuck = None if entries else _is_in_c10d()
    return {name: _group(entries.get(name, []), group, members, stuck) for name, group, members in _groups()}


def _group(entries: List[Dict[str, Any]], group: Any, members: List[int], stuck: Optional[bool]) -> Dict[str, Any]:
    if not entries:
        entered = _sequence(group)
        waits = bool(stuck and entered)
        completed = entered - (1 if waits else 0)
        nothing = {"operation": "", "sizes": []}
        return {"members": members, "entered": entered, "completed": completed, "waits": waits, **nothing}
    entered = max(int(entry["collective_seq_id"]) for entry in entries)
    unfinished = [e for e in entries if not e.get("retired") and e.get("state") != "completed"]
    shown = min(unfinished, key=lambda e: int(e["collective_seq_id"])) if unfinished else entries[-1]
    completed = int(shown["collective_seq_id"]) - 1 if unfinished else entered
    operation = str(shown.get("profiling_name", "")).rpartition(":")[2]
    return {
        "members": members, "entered": entered, "completed": completed, "waits": bool(unfinished),
        "operation": operation, "sizes": shown.get("input_sizes", []),
    }  # fmt: skip


def _is_in_c10d() -> bool:
    """Whether a thread sits in a blocking call of torch.distributed: all there is to tell where nothing is recorded."""
    own = _thread.get_ident()
    return any(f.f_code.co_filename.endswith(C10D) for i, f in sys._current_frames().items() if i != own)


def stacks(main: int) -> List[Dict[str, Any]]:
    """All threads but ours, the main thread first; frames as file, line and function, innermost first."""
    known = dict(getattr(sys.modules.get("threading"), "_active", {}))
    own = _thread.get_ident()
    frames = [(ident, frame) for ident, frame in sys._current_frames().items() if ident != own]
    frames.sort(key=lambda pair: pair[0] != main)
    names = {ident: str(getattr(known.get(ident), "name", ident)) for ident, _ in frames}
    names[main] = "MainThread"
    return [{"name": names[i], "main": i == main, "frames": _walk(f)} for i, f in frames[:MOST_THREADS]]


def _walk(frame: Any) -> List[Tuple[str, int, str]]:
    found: List[Tuple[str, int, str]] = []
    while frame is not None and len(found) < MOST_FRAMES:
        found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return found


def _rss() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
