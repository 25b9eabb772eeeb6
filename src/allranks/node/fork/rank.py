"""What a forked child does to become a rank: undo all that a fresh process would not have inherited."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Mapping, NoReturn, Optional, Sequence, Tuple

from allranks.node.fork.imports import Installed, Recorder
from allranks.node.fork.pycommand import parse
from allranks.node.processes import Title, die_with_parent
from allranks.node.watch import inside

NOT_EXECUTABLE = 126
NOT_FOUND = 127


@dataclass(frozen=True)
class Job:
    """One rank to start. ``env`` is whole; ``learn`` names the file for the names of what it imports."""

    rank: int
    argv: Tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    log: str
    learn: Optional[str] = None


class Report:
    """A pipe on which a child says why it could not start. Closed by exec, and before the rank's own code runs."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def fail(self, code: int, text: str) -> NoReturn:
        """In the child: tell the zygote and the log, and end."""
        line = f"allranks: {text}\n".encode("utf-8", "backslashreplace")
        for fd in (self.writing, 2):
            try:
                os.write(fd, line[:4096])
            except OSError:
                pass  # closed already
        os._exit(code)

    def close(self) -> None:
        os.close(self.reading)
        os.close(self.writing)

    def read(self) -> str:
        """In the zygote, once the child has ended."""
        try:
            text = os.read(self.reading, 4096).decode("utf-8", "replace")
        except BlockingIOError:  # a child of the child still holds the other end
            text = ""
        os.close(self.reading)
        return text.replace("allranks: ", "", 1).strip()


def detach(job: Job, report: Report, parent: int) -> None:
    """Own session, log and folder; dies with the zygote. The signal mask is still the zygote's, all blocked."""
    die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(NOT_EXECUTABLE)
    os.setsid()
    try:
        log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        report.fail(NOT_EXECUTABLE, f"cannot open the log {job.log}: {error.strerror}")
    null = os.open(os.devnull, os.O_RDONLY)
    for source, targets in ((null, (0,)), (log, (1, 2))):
        for target in targets:
            os.dup2(source, target)
        os.close(source)
    try:
        os.chdir(job.cwd)
    except OSError as error:
        report.fail(NOT_EXECUTABLE, f"cannot enter the working folder {job.cwd}: {error.strerror}")


def replace_by_exec(job: Job, report: Report) -> NoReturn:
    """Run the command as a fresh program, with nothing of the zygote left."""
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    _close_all_but(report.writing)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        env = {_bytes(name): _bytes(value) for name, value in inside.hooked(job.env).items()}
        os.execvpe(_bytes(job.argv[0]), [*map(_bytes, job.argv)], env)
    except OSError as error:
        missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
        reason = f"cannot run {job.argv[0]}: {error.strerror}"
        report.fail(NOT_FOUND if missing else NOT_EXECUTABLE, reason)


def _bytes(text: str) -> bytes:
    """As the spec's file has it, whatever the locale; what Python could not decode is as it was."""
    return text.encode("utf-8", "surrogateescape")


def _close_all_but(keep: int) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != keep:
            try:
                os.close(int(name))
            except OSError:
                pass  # the descriptor that listed the folder


def settle(job: Job, zygotes: Mapping[str, str], users: Iterable[str]) -> None:
    """Make the interpreter's and the libraries' state what it would be in this environment.

    ``zygotes`` is the environment of the imports; ``users`` are the job's own entries of ``sys.path``.
    """
    os.environ.clear()
    os.environ.update(job.env)  # key by key through putenv, so that C code sees it too
    os.environ.pop(inside.SOCKET, None)
    time.tzset()
    _settle_streams(sys.stdout, sys.stderr, unbuffered=bool(job.env.get("PYTHONUNBUFFERED")))
    sys.path_importer_cache.clear()  # files may have come since the zygote looked
    _settle_libraries(sys.modules, job.env, zygotes)
    if job.learn:
        sys.meta_path.insert(0, Recorder(job.learn, Installed(users)))
    inside.start(job.env)
    gc.enable()


def take_arguments(argv: Sequence[str], zygotes: Sequence[str], title: Title) -> None:
    """The script's own arguments, where they are not the zygote's; python goes on to run the script itself."""
    arguments = parse(argv).args
    sys.argv[len(sys.argv) - len(parse(zygotes).args) :] = arguments
    if hasattr(sys, "orig_argv"):  # python 3.10
        sys.orig_argv[:] = argv
    title.cover("\0".join(argv))


def _settle_streams(*streams: Any, unbuffered: bool) -> None:
    """Write at least every whole line, where plain python would keep 8 KiB: a killed rank's last words are read."""
    for stream in streams:
        if unbuffered and not stream.write_through:
            stream.reconfigure(write_through=True)
        elif not stream.write_through:
            stream.reconfigure(line_buffering=True)


def _settle_libraries(modules: Dict[str, Any], env: Mapping[str, str], zygotes: Mapping[str, str]) -> None:
    """Seeds differ between ranks as in plain processes; what was read from the environment is read again."""
    if "numpy.random" in modules:
        modules["numpy.random"].seed()  # python's own random does so itself after a fork
    if "torch" in modules:
        torch = modules["torch"]
        torch.default_generator.seed()  # the CPU's only: CUDA's default seed is a constant in plain processes too
        threads = env.get("OMP_NUM_THREADS", "")
        if threads.isdigit() and int(threads) and threads != zygotes.get("OMP_NUM_THREADS"):
            torch.set_num_threads(int(threads))
    if "torch.distributed" in modules and modules["torch.distributed"].is_available():
        modules["torch.distributed"].set_debug_level_from_env()
    if "multiprocessing.process" in modules:
        process = modules["multiprocessing.process"]
        process.ORIGINAL_DIR = os.path.abspath(os.getcwd())
        process.current_process()._config["authkey"] = process.AuthenticationString(os.urandom(32))


def forget_ourselves() -> None:
    """Take our own modules out of ``sys.modules``: a job may have another allranks installed, or none."""
    for name in [name for name in sys.modules if name == "allranks" or name.startswith("allranks.")]:
        del sys.modules[name]
