"""Which run a command means, by name or as the newest; which engine can do what; which Python is here."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click
from click.shell_completion import CompletionItem

from allranks import engines
from allranks.cli import say
from allranks.engines.engine import ONLY_REMEMBERED, CanRecall, Engine
from allranks.errors import EngineError, NotFound, Unreachable, UsageError, first_line, no_run
from allranks.node.status import Status


def python_here() -> str:
    """The interpreter that a rank's ``python`` would be on this machine; empty where there is none."""
    return shutil.which("python") or shutil.which("python3") or ""


def cannot(engine: Engine, what: str, ability: type) -> EngineError:
    """What to raise for an engine that lacks an ability: what it does not do, and which engines do."""
    able = ", ".join(one.name for one in engines.all_engines() if isinstance(one, ability))
    return EngineError(f"engine {engine.name} {what}; engines that do: {able}")


def run_name(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument NAME, completed from the runs that exist, and left out for the newest."""
    return click.argument("name", required=False, shell_complete=_complete, callback=_not_empty)(function)


def _not_empty(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    """An empty variable of a shell script must not mean the newest run, or end the only one."""
    if name == "":
        raise UsageError("NAME: found ''; name a run, or leave it out; see: allranks list")
    return name


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    runs = [status for _, status in all_runs(quiet=True)]
    return [CompletionItem(run.name, help=run.phase) for run in runs if run.name.startswith(incomplete)]


def all_runs(*, quiet: bool = False) -> list[tuple[Engine, Status]]:
    """The runs of every engine, newest first. One that cannot be asked is said once on stderr, and hides no other.

    Raises EngineError where there is no run and an engine could not be asked: nobody knows then that there is none.
    """
    found: list[tuple[Engine, Status]] = []
    silent: list[str] = []
    for engine in engines.usable():
        try:
            found += [(engine, status) for status in engine.list()]
        except EngineError as error:
            silent += [said] if (said := first_line(error)) not in silent else []
    if silent and not found and not quiet:
        raise EngineError("\n".join(silent))
    if not quiet:
        say.lines(f"runs not shown: {why}" for why in silent)
    return sorted(found, key=lambda one: one[1].started, reverse=True)


def unasked() -> list[str]:
    """What to add to "there is no such run" where no cluster was asked for it: a line, or none."""
    reasons = [engine.available() for engine in engines.all_engines() if isinstance(engine, CanRecall)]
    return [f"No cluster was asked: {reasons[0]}"] if all(reasons) else []


def pick(name: str | None) -> tuple[Engine, Status]:
    """The run of that name, or the newest one, which is then named on stderr. Raises NotFound."""
    if name:
        return _named(name)
    engine, status = _newest()
    click.echo(f"run {status.name}, the newest", err=True)
    return engine, status


def pick_living(name: str | None) -> tuple[Engine, Status]:
    """The run of that name, or the only one that is alive: nobody ends a run by guessing. Raises NotFound."""
    if name:
        return _named(name)
    living = [(engine, status) for engine, status in all_runs() if not status.is_over]
    if len(living) == 1:
        return living[0]
    names = ", ".join(status.name for _, status in living)
    raise NotFound(f"which one? These runs are alive: {names}" if living else "no run is alive")


def _named(name: str) -> tuple[Engine, Status]:
    """One that is there comes before one that is only remembered: another engine may have had the name before."""
    missing: list[tuple[Engine, NotFound]] = []
    silent: dict[str, EngineError] = {}
    remembered: list[tuple[Engine, Status]] = []
    for engine in _in_turn(name):
        try:
            status = engine.status(name)
            if ONLY_REMEMBERED not in status.notes:
                return engine, status
            remembered.append((engine, status))
        except NotFound as error:
            missing.append((engine, error))
        except EngineError as error:
            silent[str(error)] = error
    if remembered:
        return remembered[0]
    for unseen in silent.values():
        if isinstance(unseen, Unreachable) and unseen.run:
            raise unseen
    elsewhere = [f"It may be elsewhere: {why}" for why in silent]
    raise NotFound("\n".join([str(_no_run(name, missing)), *elsewhere, *unasked()]))


def _no_run(name: str, missing: list[tuple[Engine, NotFound]]) -> NotFound:
    """Which runs there are where this one is not: the name may be misspelt, or the namespace another."""
    runs: list[Status] = []
    for engine, _ in missing:
        with suppress(EngineError):  # what it cannot list only the hint lacks
            runs += engine.list()
    names = [run.name for run in sorted(runs, key=lambda run: run.started, reverse=True)]
    return no_run(name, names, [*dict.fromkeys(error.place for _, error in missing if error.place)])


def _in_turn(name: str) -> list[Engine]:
    """Those that need ask nobody first, then the one that had the run when it was last seen: it mostly still has."""
    usable = engines.usable()
    recalled = next((engine.recalled(name) for engine in usable if isinstance(engine, CanRecall)), "")

    def turn(engine: Engine) -> int:
        return (2 - (engine.name == recalled)) if isinstance(engine, CanRecall) else 0

    return sorted(usable, key=turn)


def _newest() -> tuple[Engine, Status]:
    for engine, status in all_runs():
        return engine, status
    raise NotFound("there are no runs here; start one with: allranks run -- python SCRIPT")
