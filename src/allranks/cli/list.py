"""``allranks list``: the runs, newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from allranks.cli import output as out
from allranks.cli import words
from allranks.cli.choose import all_runs, unasked

if TYPE_CHECKING:
    from allranks.node.status import Status


@click.command()
@out.output_option("json", "yaml")
def command(output: str | None) -> None:
    """List the runs, newest first.

    `digits.1` is the run before the newest one named `digits`.
    """
    runs = [status for _, status in all_runs()]
    if output:
        out.write([run.to_json() for run in runs], output)
    elif runs:
        _table(runs)
    else:
        click.echo("\n".join(["no runs yet; start one with: allranks run -- python SCRIPT", *unasked()]), err=True)


def _table(runs: list[Status]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("NAME", "ENGINE", "PHASE", "NODES", "RANKS", "RESTARTS", "STARTED", "TOOK", "WHY"):
        table.add_column(title, no_wrap=title != "WHY")
    for run in runs:
        table.add_row(
            run.name,
            run.engine,
            run.phase,
            str(len(run.nodes)),
            str(run.world_size),
            words.restarts(run),
            words.local_time(run.started),
            words.took(run),
            run.reason,
            style=words.style(run.phase),
        )
    out.console().print(table)
