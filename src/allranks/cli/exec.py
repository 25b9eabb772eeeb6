"""``allranks exec``: run a command on all ranks of a gang that is up."""

from __future__ import annotations

import click

from allranks.cli.choose import cannot, pick, run_name
from allranks.cli.spec_options import SpecCommand
from allranks.engines.engine import CanExec
from allranks.errors import UsageError


class ExecCommand(SpecCommand):
    """NAME, then the ranks' own command line after ``--``."""

    usage = ("[NAME]", "[OPTIONS]", "-- COMMAND...")


@click.command(cls=ExecCommand)
@run_name
@click.option("--restarts", type=click.IntRange(0), default=0, metavar="N", help="How often it may start again.")
@click.option("--detach", "-d", is_flag=True, help="Start it, print the gang's name, and let it go on by itself.")
def command(name: str | None, restarts: int, detach: bool, command: tuple[str, ...]) -> int:
    """Run COMMAND on all ranks of a gang that `up` started, as a new attempt, and follow it.

    Every rank gets what `run` would give it: the environment is that of `up`, paths start from its folder. Exits with
    the code of the rank that broke it (128+n for signal n); the gang is idle again. Ctrl-C asks: leave it or stop it.
    """
    if not command:
        raise UsageError("no command; write it after --, as in: allranks exec NAME -- python train.py")
    engine, status = pick(name)
    if not isinstance(engine, CanExec):
        raise cannot(engine, "has no gangs to exec on", CanExec)
    run = engine.exec(status.name, command, restarts=restarts)
    if detach:
        click.echo(run.name)
        return 0
    from allranks.cli.follow import OF_A_COMMAND, follow

    return follow(engine, run, OF_A_COMMAND)
