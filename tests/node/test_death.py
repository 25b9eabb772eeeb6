"""What a rank's end is told to be: real processes that end in every way, and texts that only GPUs could print."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from allranks.node.death import LONGEST_MESSAGE, Death, describe
from allranks.node.lastwords import TAIL_LINES, TAIL_WIDTH

ONE = 1 << 8  # the wait status of exit code 1


def end(folder: Path, *argv: str) -> Death:
    """Run a command to its end with its output in a log, as a rank's."""
    log = folder / "rank-3.log"
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=out, cwd=folder)
        _, status = os.waitpid(process.pid, 0)
        process.returncode = 0
    return describe(3, 1, status, str(log))


def end_python(folder: Path, script: str, *flags: str) -> Death:
    (folder / "train.py").write_text(textwrap.dedent(script))
    return end(folder, sys.executable, *flags, "train.py")


def said(folder: Path, text: str, status: int = ONE) -> Death:
    log = folder / "rank-3.log"
    log.write_text(text)
    return describe(3, 1, status, str(log))


def uncaught(last: str) -> str:
    return f'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    step()\n{last}\n'


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        pytest.param("pass", "exit", "exited with code 0", id="nothing"),
        pytest.param("import os; os._exit(5)", "exit", "exited with code 5, and had printed nothing", id="os._exit"),
        pytest.param(
            "import sys; sys.exit('no data')", "exit", "exited with code 1; its last line: no data", id="sys.exit(text)"
        ),
        pytest.param("{}['no']", "exception", "KeyError: 'no'", id="an exception"),
        pytest.param("import not_there", "import", "ModuleNotFoundError: No module named 'not_there'", id="an import"),
        pytest.param("x = (", "exception", "SyntaxError: '(' was never closed", id="a syntax error"),
        pytest.param("raise ValueError('first\\nsecond\\nthird')", "exception", "ValueError: first", id="more lines"),
        pytest.param("raise ValueError('\\n below')", "exception", "ValueError: below", id="a line that begins empty"),
        pytest.param("class Oh(Exception): pass\nraise Oh", "exception", "Oh", id="no message at all"),
        pytest.param("raise ValueError('数据 пусто ü')", "exception", "ValueError: 数据 пусто ü", id="not English"),
        pytest.param(
            "try: {}['no']\nexcept KeyError: raise ValueError('then')", "exception", "ValueError: then", id="a chain"
        ),
        pytest.param(
            "try: {}['no']\nexcept KeyError as error: raise ValueError('then') from error",
            "exception", "ValueError: then", id="a cause",
        ),
        pytest.param("x = [0] * (1 << 60)", "oom", "MemoryError", id="MemoryError"),
        pytest.param("import os; os.abort()", "signal", "killed by SIGABRT", id="abort"),
        pytest.param("import ctypes; ctypes.string_at(0)", "signal", "killed by SIGSEGV", id="a segfault"),
        pytest.param(
            "import faulthandler, ctypes\nfaulthandler.enable()\ndef step(): ctypes.string_at(0)\nstep()",
            "signal", "killed by SIGSEGV: Fatal Python error: Segmentation fault in train.py:3 step",
            id="a segfault with faulthandler",
        ),
        pytest.param("import os; os.kill(os.getpid(), 7)", "signal", "killed by SIGBUS", id="a bus error"),
        pytest.param("import os; os.kill(os.getpid(), 4)", "signal", "killed by SIGILL", id="an illegal instruction"),
        pytest.param("import os; os.kill(os.getpid(), 15)", "signal", "killed by SIGTERM", id="SIGTERM from outside"),
        pytest.param("raise KeyboardInterrupt", "signal", "killed by SIGINT: KeyboardInterrupt", id="an interrupt"),
        pytest.param(
            "import logging, sys\ntry: {}['no']\nexcept KeyError: logging.exception('handled')\nsys.exit(3)",
            "exit", "exited with code 3 after KeyError: 'no'", id="caught, and then a code",
        ),
        pytest.param(
            "import threading, sys\nt = threading.Thread(target=lambda: {}['no'])\nt.start(); t.join(); sys.exit(1)",
            "exit", "exited with code 1; its last line: KeyError: 'no'", id="a thread that ended nothing",
        ),
        pytest.param(
            "import threading\nt = threading.Thread(target=lambda: {}['no'])\nt.start(); t.join(); int('x')",
            "exception", "ValueError: invalid literal for int() with base 10: 'x'", id="a thread, and then the program",
        ),
        pytest.param(
            "import threading\nt = threading.Timer(0.2, lambda: {}['no'])\nt.start()\nint('x')",
            "exception", "ValueError: invalid literal for int() with base 10: 'x'", id="the program, and then a thread",
        ),
        pytest.param(
            "import traceback, sys\ntry: {}['no']\nexcept KeyError: traceback.print_exc()\n"
            "print('\\n'.join(f'step {n}' for n in range(50)))\nsys.exit(1)",
            "exit", "exited with code 1; its last line: step 49", id="caught, and gone on for long",
        ),
        pytest.param(
            "class T:\n    def __del__(self): {}['no']\nT(); import sys; sys.exit(1)",
            "exit", "exited with code 1; its last line: KeyError: 'no'", id="ignored in a destructor",
        ),
        pytest.param(
            "import multiprocessing\nmultiprocessing.set_start_method('fork')\n"
            "p = multiprocessing.Process(target=lambda: {}['no'])\np.start(); p.join()\nraise SystemExit(p.exitcode)",
            "exit", "exited with code 1; its last line: KeyError: 'no'", id="of a process of its own",
        ),
    ],
)  # fmt: skip
def test_a_real_process_ends_as_it_is_told(tmp_path: Path, script: str, kind: str, message: str) -> None:
    death = end_python(tmp_path, script)
    assert (death.kind, death.message) == (kind, message)
    assert death.failed == (message != "exited with code 0")
    assert death.survivor == ("SIGTERM" in message)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no exception groups before Python 3.11")
def test_an_exception_group_is_told_with_its_first(tmp_path: Path) -> None:
    death = end_python(tmp_path, "def f(): raise ExceptionGroup('many', [ValueError('a'), KeyError('b')])\nf()")
    assert (death.kind, death.message) == ("exception", "ExceptionGroup: many (2 sub-exceptions): ValueError: a")


def test_what_cannot_be_started_is_told_by_its_last_line(tmp_path: Path) -> None:
    missing = end(tmp_path, sys.executable, "not_there.py")
    assert missing.message.startswith("exited with code 2; its last line: ")
    assert "not_there.py': [Errno 2] No such file or directory" in missing.message
    shell = end(tmp_path, "sh", "-c", "not-there --x")
    assert shell.message.startswith("exited with code 127; its last line: ")
    assert "not-there" in shell.message


def test_a_port_that_is_taken_is_told_with_who_has_it(tmp_path: Path) -> None:
    script = (
        "import socket\ns = socket.create_server(('127.0.0.1', 0))\n"
        "try: socket.create_server(s.getsockname())\n"
        "except OSError as e: raise RuntimeError(f'cannot listen. port: {s.getsockname()[1]}, {e}')"
    )
    death = end_python(tmp_path, script)
    assert death.message.startswith("RuntimeError: cannot listen. port: ")
    assert not death.survivor
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        of_torch = (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
            f"port: {port}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
        )
        death = said(tmp_path, uncaught(of_torch))
    assert f"(port {port} is held by process {os.getpid()}: " in death.message
    assert (death.kind, death.survivor) == ("exception", False)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
def test_an_abort_for_want_of_memory_in_cpp_is_oom(tmp_path: Path) -> None:
    (tmp_path / "a.cc").write_text("int main() { for (;;) { char* p = new char[1UL << 46]; p[0] = 1; } }")
    subprocess.run(["g++", "-O0", "-o", "a", "a.cc"], cwd=tmp_path, check=True)
    death = end(tmp_path, "./a")
    assert (death.kind, death.signal, death.exit) == ("oom", "SIGABRT", 134)
    assert "std::bad_alloc" in death.message


@pytest.mark.parametrize(
    "last",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total of 79.11 GiB",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB (GPU 3; 15.90 GiB total capacity)",
        "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB",
        "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "RuntimeError: HIP out of memory. Tried to allocate 1.00 GiB",
        "torch.AcceleratorError: HIP error: out of memory (hipErrorOutOfMemory)",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory",
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB for an array with shape (1000000,)",
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:219, unhandled cuda error\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
        "OSError: [Errno 12] Cannot allocate memory",
    ],
)
def test_memory_that_could_not_be_had_is_oom_with_the_line(tmp_path: Path, last: str) -> None:
    death = said(tmp_path, uncaught(last))
    assert (death.kind, death.message) == ("oom", last.split("\n", maxsplit=1)[0])
    assert not death.survivor


@pytest.mark.parametrize(
    "last",
    [
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4021",
        "RuntimeError: [/gloo/transport/tcp/pair.cc:547] Read error [127.0.0.1]:53: Connection reset by peer",
        "RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] no error, Connection refused",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited or there "
        "was a network error\nncclRemoteError: A call failed possibly due to a network error",
        "torch.distributed.DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] "
        "via c10d key-value store by key '0', but store->get('0') got error: Connection reset by peer",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect",
        "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 3/4 clients joined.",
        "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store failed",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "RuntimeError: Socket Timeout",
        "RuntimeError: recvValue failed on SocketImpl(fd=66): Connection reset by peer",
        "RuntimeError: Rank 0 failed to pass monitoredBarrier in 5000 ms: barrier timed out",
    ],
)
def test_what_a_survivor_says_is_known_as_an_echo(tmp_path: Path, last: str) -> None:
    death = said(tmp_path, uncaught(last))
    assert death.survivor, death.message
    assert death.kind == "exception"


def test_whom_a_rank_missed_is_read_from_its_last_words(tmp_path: Path) -> None:
    death = said(
        tmp_path, "serving: rank 0: Timed out waiting for a sign of life of rank 12, for 2 s\n", status=75 << 8
    )
    assert (death.survivor, death.missed) == (True, 12)
    assert said(tmp_path, "RuntimeError: Timed out waiting 2000ms\n", status=1 << 8).missed is None


def test_a_watchdogs_abort_is_an_echo_and_says_why(tmp_path: Path) -> None:
    text = (
        "[rank2]:[E1128 12:00:00 ProcessGroupNCCL.cpp:616] [Rank 2] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=4486)\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog thread terminated with exception: "
        "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4486)\n"
    ) + "".join(f"frame #{n}: c10d::ProcessGroupNCCL::heartbeat + 0x{n} (libtorch_cuda.so)\n" for n in range(30))
    death = said(tmp_path, text, status=6)
    assert death.survivor
    assert death.message.startswith(
        "killed by SIGABRT: terminate called after throwing an instance of 'c10::DistBackend"
    )


def test_a_rank_that_speaks_of_a_watchdog_is_no_echo(tmp_path: Path) -> None:
    assert not said(tmp_path, "watchdog started\n").survivor


def test_an_exception_of_torch_spawn_or_a_data_loader_is_told_as_the_inner_one(tmp_path: Path) -> None:
    spawned = uncaught("torch.multiprocessing.spawn.ProcessRaisedException: ") + (
        "\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n"
        '  File "spawn.py", line 90, in _wrap\n    fn(i, *args)\nValueError: inner\n'
    )
    assert said(tmp_path, spawned).message == "ValueError: inner"
    loaded = uncaught("RuntimeError: Caught ValueError in DataLoader worker process 0.") + (
        "Original Traceback (most recent call last):\n"
        '  File "worker.py", line 1, in _worker_loop\n    data = fetch()\nValueError: inner\n'
    )
    assert said(tmp_path, loaded).message == "ValueError: inner"
    exited = uncaught("torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with exit code 3")
    assert said(tmp_path, exited).message.endswith("process 0 terminated with exit code 3")


def test_torchs_repetition_of_a_traceback_changes_nothing(tmp_path: Path) -> None:
    once = uncaught("ValueError: boom")
    again = "".join(f"[rank3]: {line}\n" for line in once.splitlines())
    warning = "[rank3]:[W1128 12:00:00 ProcessGroupNCCL.cpp:1250] Warning: destroy_process_group() was not called\n"
    death = said(tmp_path, once + again + warning * 60)
    assert (death.kind, death.message) == ("exception", "ValueError: boom")


def test_an_endless_message_and_binary_junk_are_cut(tmp_path: Path) -> None:
    death = said(tmp_path, "\x00\x01\n" * 100 + uncaught("ValueError: " + "x" * 20000))
    assert (death.kind, len(death.message)) == ("exception", LONGEST_MESSAGE)
    assert len(death.tail) <= TAIL_LINES
    assert max(map(len, death.tail)) <= TAIL_WIDTH


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (
            "allranks.checkpoint.DiskFull: rank 3 could not save out/step-1.pt: no space left on its disk",
            "allranks.checkpoint.DiskFull: rank 3 could not save out/step-1.pt: no space left on its disk",
        ),
        (
            "OSError: [Errno 28] No space left on device: 'out/step-1.pt'",
            "OSError: [Errno 28] No space left on device: 'out/step-1.pt'",
        ),
        (
            "RuntimeError: [enforce fail at inline_container.cc:672] . PytorchStreamWriter failed writing file data/0: "
            "file write failed",
            "RuntimeError: [enforce fail at inline_container.cc:672] . PytorchStreamWriter failed writing file data/0: "
            "file write failed (torch says this when the disk that it saves to is full)",
        ),
    ],
    ids=["by our save", "by the job's own code", "by torch, which hides it"],
)
def test_a_full_disk_is_told_as_such(tmp_path: Path, last: str, message: str) -> None:
    death = said(tmp_path, uncaught(last))
    assert (death.kind, death.message) == ("exception", message)
