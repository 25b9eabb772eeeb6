"""``allranks fabric``: what this node's network is, what NCCL will use of it, and what must be set."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from allranks.cli import output as out
from allranks.cli.choose import python_here
from allranks.cli.lines import tame
from allranks.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from allranks.fabric.devices import Host, Port
    from allranks.fabric.nccl import Choice
    from allranks.fabric.report import Report
    from allranks.fabric.tree import Tree
    from allranks.fabric.version import Version


@click.command()
@click.option("--root", metavar="DIR", default="/", help="A saved tree to look at: a folder, or a file of --save.")
@click.option("--save", "target", metavar="FILE", help="Save what is looked at as a .tar.gz, for somebody else to see.")
@click.option("--nccl", metavar="VERSION", help="Decide for this version of NCCL (2.18.5), not for the one found.")
@click.option("--rdma", type=click.Choice(["auto", "required", "off"]), default="auto", help="As network.rdma.")
@out.output_option("json", "yaml")
def command(root: str, target: str | None, nccl: str | None, rdma: str, output: str | None) -> None:
    """Tell of this node's RDMA devices, what NCCL will use, and what allranks would set. Nothing is changed.

    The keys of -o json are fixed; more may be added.
    """
    from allranks.fabric.report import look

    version = _version(nccl)
    tree = _tree(root)
    if target:
        _save(tree, target)
        return
    report = look(tree, os.environ, python_here(), version, rdma)
    if output:
        out.write(report.to_json(), output)
    else:
        show(report, out.console())


def _tree(root: str) -> Tree:
    from allranks.fabric.tree import NotATree, open_tree

    try:
        return open_tree("/" if os.path.realpath(root) == "/" else root)
    except NotATree as error:
        raise UsageError(f"--root: {error}") from error


def _version(text: str | None) -> Version | None:
    from allranks.fabric.version import OLDEST, parse_version, shown

    if text is None:
        return None
    version = parse_version(text)
    if version is None or version < OLDEST:
        raise UsageError(f"--nccl: {text!r} is no known version; allowed: {shown(OLDEST)} and newer, such as 2.21.5")
    return version


def _save(tree: Tree, target: str) -> None:
    from allranks.fabric.save import save
    from allranks.fabric.settings import saved_environment

    env = os.environ if tree.root == "/" else saved_environment(tree)
    try:
        count = save(tree, target, env, python_here())
    except OSError as error:
        raise UsageError(f"--save: cannot write {target}: {error.strerror}") from error
    size = Path(target).stat().st_size
    click.echo(f"{target}: {count} files, {size // 1024 + 1} KiB; it holds host and device names and addresses")
    click.echo(f"to look at it: allranks fabric --root {target}")


# ---- for people


def show(report: Report, console: Console) -> None:
    """Write a report for people."""
    host = report.host
    console.print(f"fabric: {host.kind}", style="bold")
    if host.ports:
        _print(console, _devices(host), _gids(host))
    else:
        console.print("no RDMA device in /sys/class/infiniband")
    _print(console, _netdevs(host), _nccl(report.choices))
    for line in _decided(report):
        console.print(tame(line), soft_wrap=True)
    for finding in report.decision.findings:
        fix = f"; {finding.fix}" if finding.fix else ""
        line = tame(f"{finding.level}: {finding.where}: {finding.what}{fix}")
        console.print(line, style=out.LEVELS.get(finding.level, ""), soft_wrap=True)


def _print(console: Console, *tables: object) -> None:
    for table in tables:
        console.print()
        console.print(table)


def _fill(titles: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> object:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title)
    for row in rows:
        table.add_row(*(tame("-" if cell in (None, "") else str(cell)) for cell in row))
    return table


def _devices(host: Host) -> object:
    titles = ("DEVICE", "PORT", "LINK", "STATE", "GBIT/S", "NETDEV", "NUMA", "USABLE", "WHY NOT")

    def row(port: Port) -> tuple[object, ...]:
        why = host.why_not(port)
        rate = f"{port.rate:g}" if port.rate is not None else None
        return (
            port.device, port.port, port.link_layer, port.state, rate, port.netdev, port.numa, "no" if why else "yes",
            why or " ",
        )  # fmt: skip

    return _fill(titles, (row(port) for port in host.ports))


def _gids(host: Host) -> object:
    titles = ("GID OF", "INDEX", "ADDRESS", "VERSION", "FAMILY", "NETDEV", "OWN")
    return _fill(
        titles,
        (
            (port.name, gid.index, gid.address, gid.version, gid.family, gid.netdev,
             f"no: {gid.foreign}" if gid.foreign else "yes")
            for port in host.ports for gid in port.filled
        ),
    )  # fmt: skip


def _netdevs(host: Host) -> object:
    titles = ("NETDEV", "STATE", "GBIT/S", "DEFAULT ROUTE")
    routes = {True: "yes", False: "no"}
    return _fill(
        titles,
        (
            (netdev.name, netdev.state, f"{netdev.speed:g}" if netdev.speed else None, routes[netdev.has_default_route])
            for netdev in host.netdevs
        ),
    )  # fmt: skip


def _nccl(choices: tuple[Choice, ...]) -> object:
    """One row for neighbouring releases that choose the same."""
    from allranks.fabric.version import shown

    def rows() -> Iterator[tuple[object, ...]]:
        for (chosen, why), same in groupby(choices, key=lambda choice: (_chosen(choice), choice.why)):
            versions = [shown(choice.version) for choice in same]
            yield (versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}", chosen, why)

    return _fill(("NCCL", "CHOOSES (DEVICE:PORT, GID INDEX)", "WHY"), rows())


def _chosen(choice: Choice) -> str:
    return ", ".join(f"{one.port.name} {'error' if one.error else one.gid_index}" for one in choice.chosen)


def _decided(report: Report) -> Iterator[str]:
    from allranks.fabric.version import shown

    decision = report.decision
    seen = "" if report.found else ", none was found"
    yield f"\nfor NCCL {shown(decision.version)}{seen} allranks would set " + ("" if decision.set else "nothing")
    for name, value in decision.set.items():
        yield f"  {name}={value}"
    for name, why in decision.leave:
        yield f"  leave {name}: {why}"
