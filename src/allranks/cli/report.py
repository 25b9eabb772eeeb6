"""``allranks report``: a page about a run."""

from __future__ import annotations

import os
from pathlib import Path

import click

from allranks.cli.choose import cannot, pick, run_name
from allranks.engines.engine import CanReport
from allranks.errors import UsageError
from allranks.node.files import write_whole


@click.command()
@run_name
@click.option("-o", "--output", metavar="FILE", help="Where to write it, - for standard output.  [default: NAME.html]")
def command(name: str | None, output: str | None) -> None:
    """Write one HTML page about a run, complete in itself; without NAME: about the newest.

    Attempts over time, what broke each with its evidence, every rank's memory and last lines. At most 5 MB. An earlier
    report is replaced, any other file is not.
    """
    engine, status = pick(name)
    if not isinstance(engine, CanReport):
        raise cannot(engine, f"keeps nothing to report (see: allranks status {status.name})", CanReport)
    from allranks.cli.page import page

    target = output or f"{status.name}.html"
    if target != "-":
        _must_be_ours(Path(target))
    text = page(status, engine.kept(status.name))
    if target == "-":
        click.echo(text.encode(), nl=False)
    else:
        _write(target, text)
        click.echo(target)


def _must_be_ours(file: Path) -> None:
    """Raise for something that nobody meant to lose."""
    from allranks.cli.page import GENERATOR

    if file.is_dir():
        raise UsageError(f"-o {file}: it is a folder; give a file's name")
    if not file.parent.is_dir():
        raise UsageError(f"-o {file}: there is no folder {file.parent}")
    if file.is_file() and file.stat().st_size:
        with file.open("rb") as opened:
            if GENERATOR.encode() not in opened.read(1000):
                raise UsageError(f"{file} is there and is no report; give another name: -o FILE")


def _write(target: str, text: str) -> None:
    path = os.path.realpath(target)
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe, a terminal
        Path(path).write_text(text, encoding="utf-8")
        return
    mask = os.umask(0)
    os.umask(mask)
    write_whole(path, text, mode=0o666 & ~mask)
