"""``allranks cancel``: end a run."""

from __future__ import annotations

import click

from allranks.cli.choose import cannot, pick_living, run_name
from allranks.engines.engine import CanStop, Engine

REASON = "cancelled by 'allranks cancel'"


@click.command()
@run_name
@click.option("--command", "only_command", is_flag=True, help="End the command alone; a gang that is up stays, idle.")
def command(name: str | None, only_command: bool) -> None:
    """End a run and wait until nothing of it is left.

    Without NAME: the only run that is alive. Ranks get SIGTERM, then SIGKILL after failure.grace. To cancel a run
    that is over is no error.
    """
    engine, before = pick_living(name)
    if before.is_over:
        engine.cancel(before.name, reason=REASON)  # what a sidecar keeps of it goes
        click.echo(f"run {before.name} is over already: {before.phase}")
        return
    if only_command:
        _stop(engine, before.name)
        return
    click.echo(f"ending run {before.name} ...", err=True)
    after = engine.cancel(before.name, reason=REASON)
    why = f" ({after.reason})" if after.phase != "cancelled" and after.reason else ""
    click.echo(f"run {after.name}: {after.phase}{why}")


def _stop(engine: Engine, name: str) -> None:
    if not isinstance(engine, CanStop):
        raise cannot(engine, "ends no command without its gang", CanStop)
    click.echo(f"stopping the command of {name} ...", err=True)
    after = engine.stop(name, reason="stopped by 'allranks cancel --command'")
    click.echo(f"{after.name}: {after.phase}; the gang is idle")
