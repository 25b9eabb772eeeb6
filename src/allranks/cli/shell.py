"""``allranks shell``: a terminal on one of a gang's nodes."""

from __future__ import annotations

import click

from allranks.cli.choose import cannot, pick, run_name
from allranks.engines.engine import CanShell


@click.command()
@run_name
@click.option("--node", type=int, default=0, metavar="N", help="Which node, counted from 0.  [default: 0]")
def command(name: str | None, node: int) -> int:
    """Open a shell on one node of a living gang, in the folder and environment of its ranks.

    It has the node's identity (NODE_RANK, MASTER_ADDR, LOCAL_WORLD_SIZE, ALLRANKS_NODE ...) and no rank's: a script
    started in it runs alone. It ends with the gang; exits with the shell's own code. Without a terminal it reads
    commands from standard input.
    """
    engine, status = pick(name)
    if not isinstance(engine, CanShell):
        raise cannot(engine, "opens no shells", CanShell)
    return engine.shell(status.name, node)
