"""``allranks convert``: a spec from what somebody wrote for another tool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import click

from allranks.cli import output as out
from allranks.cli.spec_options import SpecCommand
from allranks.errors import SpecError, UsageError

if TYPE_CHECKING:
    from allranks.convert.draft import Lost
    from allranks.spec.job import Job


class ConvertCommand(SpecCommand):
    """Its words after ``--`` are a command line to convert."""

    usage = ("[FILE]", "[OPTIONS]", "[-- COMMAND...]")


@click.command(cls=ConvertCommand)
@click.argument("file", required=False)
@click.option("--name", metavar="NAME", help="Which one, where a file holds several gangs.")
@out.output_option("yaml", "json")
def command(file: str | None, name: str | None, output: str | None, command: tuple[str, ...]) -> None:
    """Make a spec of what was written for another tool.

    \b
    FILE: an MPIJob, PyTorchJob, TrainJob, JobSet, Job or hostfile; - is stdin.
    COMMAND: a runai, torchrun, deepspeed or mpirun command line. With both,
    FILE is the hostfile that the command goes with.

    The spec goes to stdout, and what it does not hold to stderr: where that
    stands, and why. Exits with 65 where no spec can be made.
    """
    if not file and not command:
        raise UsageError("nothing to convert: name a file, or give a command line after '--'")
    job, lost = _converted(file, name, command)
    from allranks.spec.write import dump

    if output == "json":
        rows = [{"where": one.where, "what": one.what, "why": one.why} for one in lost]
        out.write(
            {"spec": job.model_dump(mode="json", exclude_defaults=True) | {"kind": job.kind}, "lost": rows}, "json"
        )
        return
    for one in lost:
        click.echo(f"not carried: {one}", err=True)
    click.echo(dump(job), nl=False)


def _converted(file: str | None, name: str | None, command: Sequence[str]) -> tuple[Job, list[Lost]]:
    from allranks.convert.command import from_command
    from allranks.convert.runai import from_runai, is_runai
    from allranks.manifest.hostfile import hosts, is_hostfile
    from allranks.manifest.read import text_of

    if not file:
        return from_runai(command) if is_runai(command) else from_command(command)
    text = text_of(file)
    if is_hostfile(text):
        found = [(host.name, host.slots) for host in hosts(text)]
        if not command:
            raise UsageError(
                f"{file} is a hostfile; give the command too: allranks convert {file} -- deepspeed train.py"
            )
        return from_command(command, found)
    if command:
        raise UsageError(f"{file} is no hostfile, so it has its own command; leave out what follows '--'")
    return _manifest(text, file, name)


def _manifest(text: str, file: str, name: str | None) -> tuple[Job, list[Lost]]:
    from allranks.convert.kinds import CARRY, from_manifest
    from allranks.manifest.gang import Manifest
    from allranks.manifest.read import read

    source = "<stdin>" if file == "-" else file
    contents = read(text, source)
    if contents.unread:
        raise SpecError("\n".join(f"{source}:{one}" for one in contents.unread))
    found = [Manifest(source, root, contents.documents) for root in contents.documents if root["kind"].text in CARRY]
    if not found:
        raise SpecError(contents.nothing)
    if name is not None or len(found) > 1:
        found = [one for one in found if one.name == name] or _choose([one.name for one in found], source)
    if not found[0].root["apiVersion"] and found[0].kind == "Job":
        raise SpecError(f"{source}: this is a spec already; check it with: allranks plan {source}")
    return from_manifest(found[0])


def _choose(names: list[str], source: str) -> NoReturn:
    raise UsageError(f"{source} holds {len(names)} gangs; choose one with --name: {', '.join(names)}")
