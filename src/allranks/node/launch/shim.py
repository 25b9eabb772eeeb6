"""Between a foreign launcher and a rank: completes the rank's environment, opens its log, reports its true end.

A launcher that makes the ranks itself tells only its own exit code, after it has ended the others. The shim is
each rank's parent: the agent hears pid and wait status at once, whatever the launcher makes of them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from dataclasses import replace
from typing import Any, Dict, List, NoReturn, Tuple

from allranks.node import processes
from allranks.node.entry import entry
from allranks.node.environment import node_environment, rank_environment
from allranks.node.gang import Gang, load
from allranks.node.launch.spawn import Start
from allranks.node.watch import inside

_REPORTS, PLAN, _COMMAND = "ALLRANKS_SHIM", "ALLRANKS_SHIM_PLAN", "ALLRANKS_SHIM_COMMAND"


def interpreter_of(gang: Gang) -> str:
    """The user's own python where the command names one, else the first ``python3``."""
    first = gang.argv[0]
    return first if os.path.basename(first).startswith("python") else "python3"


def command(gang: Gang) -> Tuple[str, ...]:
    """The rank's command line with the shim before it."""
    return (sys.executable, entry(), "shim", *gang.argv)


def environment(gang: Gang, node: int, start: Start) -> Dict[str, str]:
    """What the launcher gets and hands on, so that each shim can find its agent and its rank."""
    plan = os.path.join(gang.state, "plan.json")
    command = json.dumps({"restarts": gang.restarts, "first_attempt": gang.first_attempt})
    return {**node_environment(gang, node, start.attempt), _REPORTS: start.shim, PLAN: plan, _COMMAND: command}


def main(argv: List[str]) -> int:
    """Run ``argv`` as the rank that the launcher's RANK says; end as it ended."""
    gang = replace(load(os.environ[PLAN]), **json.loads(os.environ[_COMMAND]))
    rank, attempt = int(os.environ["RANK"]), int(os.environ["ALLRANKS_ATTEMPT"])
    reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    reports.connect("\0" + os.environ[_REPORTS])
    processes.die_with_parent(signal.SIGKILL)
    pid = os.fork()
    if pid == 0:
        _become(gang, rank, attempt, argv)
    _report(reports, rank=rank, attempt=attempt, pid=pid)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: _pass_on(pid, received))
    _, status, usage = os.wait4(pid, 0)
    _report(
        reports, rank=rank, attempt=attempt, pid=pid, status=status, at=time.time(), maxrss_kb=usage.ru_maxrss
    )  # fmt: skip
    return _end_as(status)


def _become(gang: Gang, rank: int, attempt: int, argv: List[str]) -> NoReturn:
    processes.die_with_parent(signal.SIGKILL)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    env = {name: value for name, value in os.environ.items() if not name.startswith("ALLRANKS_SHIM")}
    env.update(rank_environment(gang, rank, attempt, address, port))
    log = gang.log_of(attempt, rank)
    os.makedirs(os.path.dirname(log), exist_ok=True)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    try:
        os.execvpe(argv[0], argv, inside.hooked(env))
    except OSError as error:
        os.write(2, f"allranks: cannot run {argv[0]}: {error.strerror}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _report(reports: socket.socket, **message: Any) -> None:
    try:
        reports.send(json.dumps(message).encode())
    except OSError:
        pass  # the agent has gone; its zygote is about to end us too


def _pass_on(pid: int, received: int) -> None:
    try:
        os.kill(pid, received)
    except ProcessLookupError:
        pass  # it has just ended: waitpid is about to say so


def _end_as(status: int) -> int:
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number
