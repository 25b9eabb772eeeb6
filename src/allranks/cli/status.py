"""``allranks status``: how a run is doing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from allranks.cli import output as out
from allranks.cli import words
from allranks.cli.choose import pick, run_name
from allranks.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from allranks.node.status import NodeStatus, RankStatus, Status

MOST_NODES = 32
MOST_RANKS = 8
MOST_COMMANDS = 5


@click.command()
@run_name
@click.option("-w", "--watch", "watched", is_flag=True, help="Go on showing it until the run is over.")
@out.output_option("json", "yaml")
def command(name: str | None, watched: bool, output: str | None) -> None:
    """Tell how a run is doing: nodes, ranks, and what broke it; without NAME: the newest.

    The keys of -o json are fixed; more may be added.
    """
    if watched and output:
        raise UsageError(f"--watch is for people; for programs call 'allranks status -o {output}' again and again")
    engine, status = pick(name)
    if watched:
        from allranks.cli.watch import watch

        status = watch(engine, status.name)
    if output:
        out.write(status.to_json(), output)
    else:
        show(status, out.console())


def show(status: Status, console: Console) -> None:
    """Write a status for people."""
    console.print(f"{status.name}: {status.phase}", style=words.style(status.phase), end="")
    console.print(f" - {status.reason}" if status.reason else "", soft_wrap=True)
    console.print("  ".join(_facts(status)), soft_wrap=True)
    if status.conditions:
        console.print(f"its object says: {', '.join(status.conditions)}", soft_wrap=True)
    if status.straggler:
        console.print(words.straggling(status), style="yellow", soft_wrap=True)
    console.print(_table(status.nodes))
    for given in status.commands[-MOST_COMMANDS:] if status.stays else ():
        console.print(f"command {given.number}: {words.outcome(given)}", soft_wrap=True)
    for note in status.notes:
        console.print(f"note: {note}", soft_wrap=True)
    for cause in status.causes:
        console.print(f"\nattempt {cause.attempt} ({words.local_time(cause.at)}): {cause.message}", soft_wrap=True)
        for line in words.explained(cause, status.name):
            console.print(line, soft_wrap=True)


def _facts(status: Status) -> list[str]:
    facts = [
        f"engine {status.engine}",
        f"attempt {status.attempt}",
        f"restarts {words.restarts(status)}",
        f"{words.counted(status.world_size, 'rank')} on {words.counted(len(status.nodes), 'node')}",
        status.transport,
        f"{'took' if status.is_over else 'for'} {words.took(status)}",
        f"exit code {status.exit_code}" if status.exit_code is not None else "",
    ]
    return [fact for fact in facts if fact]


def _table(nodes: Sequence[NodeStatus]) -> object:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("NODE", "NAME", "ADDRESS", "PHASE", "RANKS", "WHY"):
        table.add_column(title)
    shown = _worth_showing(nodes)
    for node in shown:
        table.add_row(str(node.node), node.name, node.address, node.phase, _ranks(node.ranks), node.reason)
    if len(shown) < len(nodes):
        table.add_row("", f"and {len(nodes) - len(shown)} more")
    return table


def _worth_showing(nodes: Sequence[NodeStatus]) -> Sequence[NodeStatus]:
    """Of a large gang those that are not like the others, then the first ones."""
    odd = [node for node in nodes if node.reason]
    rest = [node for node in nodes if not node.reason]
    return sorted([*odd, *rest][:MOST_NODES], key=lambda node: node.node)


def _ranks(ranks: Sequence[RankStatus]) -> str:
    shown = "  ".join(map(_rank, ranks[:MOST_RANKS]))
    return f"{shown}  and {len(ranks) - MOST_RANKS} more" if len(ranks) > MOST_RANKS else shown


def _rank(rank: RankStatus) -> str:
    if rank.exit is not None:
        return f"{rank.rank}: {rank.state}, exit {rank.exit}"
    known = [f"pid {rank.pid}" if rank.pid else "", words.size(rank.rss) if rank.rss else ""]
    known.append(f"{words.rate(rank.rate)}/s" if rank.rate is not None else "")
    return ", ".join([f"{rank.rank}: {rank.state}", *filter(None, known)])
