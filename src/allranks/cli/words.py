"""A run's state in words: pure functions from a Status to short texts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from allranks.cli.lines import tame
from allranks.node.cause import Cause, moment
from allranks.node.status import CommandStatus, NodeStatus, RankStatus, Status

STYLES = {"succeeded": "green", "failed": "red", "cancelled": "yellow", "restarting": "yellow", "running": "cyan"}
PRESENT = ("ready", "running", "succeeded", "idle")


def style(phase: str) -> str:
    """The colour of a phase."""
    return STYLES.get(phase, "")


def restarts(status: Status) -> str:
    """``1 of 3``."""
    return f"{status.restarts.get('used', 0)} of {status.restarts.get('allowed', 0)}"


def counted(number: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def seconds(status: Status, now: datetime | None = None) -> float | None:
    """How long the run has taken so far; None before it has begun."""
    start, end = _moment(status.started), _moment(status.ended)
    if start is None:
        return None
    return max(0.0, ((end or now or datetime.now(timezone.utc)) - start).total_seconds())


def took(status: Status) -> str:
    """``0:12``, ``1:02:03``; of a run that died without a last word nobody knows."""
    passed = seconds(status)
    if passed is None or (status.is_over and not status.ended):
        return "-"
    minutes, rest = divmod(int(passed), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def local_time(utc: str) -> str:
    """A moment as the clock on the wall shows it."""
    at = _moment(utc)
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S}" if at else "-"


def _moment(utc: str) -> datetime | None:
    try:
        return datetime.fromtimestamp(moment(utc), timezone.utc)
    except ValueError:
        return None


def awaited(status: Status) -> str:
    """Who is there and who is missing and why: ``1 of 2 nodes are there; waiting for digits-1: (reason)``."""
    missing = [node for node in status.nodes if node.phase not in PRESENT]
    there = f"{len(status.nodes) - len(missing)} of {counted(len(status.nodes), 'node')} there"
    if not missing:
        return f"{there}; {status.reason}" if status.reason else there
    why = status.reason.removeprefix(there).lstrip("; ")
    if why and not any(node.reason for node in missing):
        return f"{there}; {why}"  # nobody has made their pods, and only the run's own objects say why
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return f"{there}; waiting for {', '.join(map(_named, missing[:3]))}{more}"


def _named(node: NodeStatus) -> str:
    return f"{node.name} ({node.reason})" if node.reason else node.name


def broken(cause: Cause, status: Status) -> str:
    """An attempt that ended, while the run goes on."""
    return f"attempt {cause.attempt}: {cause.message}; restarting ({restarts(status)})"


def ending(status: Status) -> Iterator[str]:
    """The last lines of ``run``: how it ended, and why, with all that is needed to look further."""
    yield _verdict(status)
    if status.causes and status.phase != "succeeded":
        run, _, _ = status.name.partition(" ")  # a command's has the command line behind it
        yield from explained(status.causes[-1], run)


def _verdict(status: Status) -> str:
    used = status.restarts.get("used", 0)
    after = f" after {counted(used, 'restart')}" if used else ""
    time = f" in {took(status)}" if took(status) != "-" else ""
    return f"{status.name} {status.phase}{time}{after}" + (f": {status.reason}" if status.reason else "")


def outcome(command: CommandStatus) -> str:
    """``python train.py: failed, attempts 3 to 5, exit code 7``; how a command of an idle gang went."""
    tries = f"attempt {command.attempt}" + (f" to {command.last_attempt}" if command.attempts > 1 else "")
    code = f", exit code {command.exit_code}" if command.exit_code is not None else ""
    return f"{command.line}: {command.phase}, {tries}{code}"


def explained(cause: Cause, run: str) -> Iterator[str]:
    """A cause with its last lines, the errors that only followed from it, and the full log, or who shows it."""
    for line in cause.tail:
        yield f"  | {tame(line)}"
    for other in cause.secondary[:4]:
        yield f"secondary: rank {other.rank}: {other.message}"
    if len(cause.secondary) > 4:
        yield f"secondary: {len(cause.secondary) - 4} more ranks"
    if cause.log:
        rank = "" if cause.rank is None else f" --rank {cause.rank}"
        shown = f"allranks logs {run} --attempt {cause.attempt}{rank}"  # the path may be one of a pod's
        yield f"full log: {cause.log if Path(cause.log).exists() else shown}"


def state(rank: RankStatus) -> str:
    """``running``, ``exit 1``."""
    return rank.state if rank.exit is None else f"exit {rank.exit}"


def size(number: float | None) -> str:
    """Bytes in words: ``512 MiB``, ``1.2 GiB``; ``-`` where they are not known."""
    if number is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if number < 1000 or unit == "TiB":
            break
        number /= 1024
    return f"{number:.3g} {unit}"


def rate(number: float | None) -> str:
    """Per second: ``12.5``, ``0.08``; ``-`` where it is not known."""
    return "-" if number is None else f"{number:.3g}" if number < 1000 else f"{number:.0f}"


def straggling(status: Status, now: datetime | None = None) -> str:
    """Whom the others wait for and for how long; empty when they do not."""
    one = status.straggler
    if one is None:
        return ""
    since = _moment(one.since)
    passed = max(0.0, ((now or datetime.now(timezone.utc)) - since).total_seconds()) if since else 0.0
    return f"waiting for {passed:.0f} s: {one.message}"
