"""``allranks logs``: what the ranks printed."""

from __future__ import annotations

import sys

import click

from allranks.cli.choose import pick, run_name
from allranks.cli.lines import Prefix, batches
from allranks.engines.engine import CanLog, LogFilter
from allranks.errors import EngineError


@click.command()
@run_name
@click.option("--rank", "ranks", type=int, multiple=True, metavar="R", help="Only this rank; may be repeated.")
@click.option("--node", "nodes", type=int, multiple=True, metavar="N", help="Only this node; may be repeated.")
@click.option("--attempt", type=int, metavar="A", help="Only this attempt, counted from 0.  [default: the newest]")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run is over.")
def command(
    name: str | None, ranks: tuple[int, ...], nodes: tuple[int, ...], attempt: int | None, follow: bool
) -> None:
    """Show what the ranks of a run printed; without NAME: of the newest.

    Lines are in order per rank. With -f they are merged as they arrive, restarts included.
    """
    engine, status = pick(name)
    if not isinstance(engine, CanLog):
        raise EngineError(f"engine {engine.name} keeps no logs")
    wanted = LogFilter(frozenset(ranks), frozenset(nodes), attempt)
    prefix = Prefix(status.world_size, terminal=sys.stdout.isatty())
    for batch in batches(engine.logs(status.name, wanted, follow=follow)):
        sys.stdout.write(prefix.text(batch))
        sys.stdout.flush()
