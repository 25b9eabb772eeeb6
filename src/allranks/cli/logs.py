"""``allranks logs``: what the ranks printed."""

from __future__ import annotations

import sys
import time
from datetime import datetime

import click

from allranks.cli import say
from allranks.cli.choose import cannot, pick, run_name
from allranks.cli.lines import Prefix, batches
from allranks.engines.engine import OURS, CanLog, LogFilter
from allranks.errors import UsageError
from allranks.node import cause


@click.command()
@run_name
@click.option("--rank", "ranks", type=int, multiple=True, metavar="R", help="Only this rank; may be repeated.")
@click.option("--node", "nodes", type=int, multiple=True, metavar="N", help="Only this node; may be repeated.")
@click.option("--attempt", type=int, metavar="A", help="Only this attempt, counted from 0.  [default: the newest]")
@click.option(
    "--since",
    "after",
    metavar="WHEN",
    callback=lambda ctx, param, value: None if value is None else moment(value),
    help="Only what came in the last 90s, 10m, 2h, ..., or since a time such as 2026-01-31T17:30 (of this machine's "
    "zone, or with Z or +01:00 behind it), in all attempts. To the second within the last minutes, else "
    "to 0.2 % of the time since.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on until the run is over.")
def command(
    name: str | None,
    ranks: tuple[int, ...],
    nodes: tuple[int, ...],
    attempt: int | None,
    after: float | None,
    follow: bool,
) -> None:
    """Show what the ranks of a run printed; without NAME: of the newest.

    Lines are in order per rank. With -f they are merged as they arrive, restarts included. The files that they come
    from hold every byte; here a progress bar is its last state, an overlong line is cut, and nothing moves the cursor.
    """
    engine, status = pick(name)
    if not isinstance(engine, CanLog):
        raise cannot(engine, "keeps no logs", CanLog)
    wanted = LogFilter(frozenset(ranks), frozenset(nodes), attempt, after=after)
    prefix = Prefix(status.world_size, terminal=sys.stdout.isatty())
    for batch in batches(engine.logs(status.name, wanted, follow=follow)):
        sys.stdout.write(prefix.text(line for line in batch if line.node != OURS))
        sys.stdout.flush()
        say.lines(line.text for line in batch if line.node == OURS)


def moment(text: str) -> float:
    """Seconds since 1970 of a time, or of a duration before now. Raises UsageError, also for what is yet to come."""
    try:
        found = cause.moment(text)
    except (ValueError, OverflowError):
        pass  # not a time, so a duration
    else:
        if found > time.time():
            now = datetime.now().astimezone()
            raise UsageError(f"--since {text}: that is yet to come; it is {now:%Y-%m-%dT%H:%M:%S%z} here")
        return found
    from allranks.spec.units import Duration

    try:
        return time.time() - Duration.parse(text).seconds
    except ValueError:
        allowed = "a duration such as 90s, 10m or 1h30m, or a time such as 2026-01-31T17:30"
        raise UsageError(f"--since: found {text!r}; allowed is {allowed}") from None
