"""``allranks cancel``: end a run."""

from __future__ import annotations

import click

from allranks.cli.choose import pick_living, run_name


@click.command()
@run_name
def command(name: str | None) -> None:
    """End a run and wait until nothing of it is left.

    Without NAME: the only run that is alive. Ranks get SIGTERM, then SIGKILL after failure.grace. To cancel a run
    that is over is no error.
    """
    engine, before = pick_living(name)
    if before.is_over:
        click.echo(f"run {before.name} is over already: {before.phase}")
        return
    click.echo(f"ending run {before.name} ...", err=True)
    after = engine.cancel(before.name, reason="cancelled by 'allranks cancel'")
    why = f" ({after.reason})" if after.phase != "cancelled" and after.reason else ""
    click.echo(f"run {after.name}: {after.phase}{why}")
