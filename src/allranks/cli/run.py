"""``allranks run``: start a gang and follow it."""

from __future__ import annotations

import click

from allranks import engines
from allranks.cli import say
from allranks.cli.spec_options import SpecCommand, plan_of, spec_options


@click.command(cls=SpecCommand)
@spec_options
@click.option("--detach", "-d", is_flag=True, help="Start it, print its name, and let it go on by itself.")
def command(engine: str, detach: bool, **options: object) -> int:
    """Start a gang from SPEC.yaml, or from a command after --, and follow it to its end.

    Options win over the file; a command after -- takes the place of its `run`. Exits with the code of the rank
    that broke the run (128+n for signal n). Ctrl-C asks: detach or cancel.
    """
    chosen = engines.get_usable(engine)
    plan = plan_of(chosen, options)
    with say.notes(plan.notes):
        run = chosen.submit(plan, detach=detach)
    if detach:
        click.echo(run.name)
        return 0
    from allranks.cli.follow import follow

    return follow(chosen, run)
