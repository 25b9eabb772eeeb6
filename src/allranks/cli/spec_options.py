"""What ``run``, ``up`` and ``plan`` share: a spec file, a command after ``--``, and options that override fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from allranks.engines.engine import CanPretend
from allranks.errors import UsageError

if TYPE_CHECKING:
    from allranks.engines.engine import Engine, Plan
    from allranks.spec.job import Job
    from allranks.spec.service import Spec

DEFAULT_SPEC = "job.yaml"

_OPTIONS = (
    click.argument("spec", required=False, shell_complete=lambda *_: _spec_files()),
    click.option("--engine", default="local", metavar="E", help="Where it runs.  [default: local]"),
    click.option("--as", "pretended", metavar="E", help="Let the nodes see what this other engine would give them."),
    click.option("--name", metavar="NAME", help="Name of the run.  [default: the spec's, or the script's]"),
    click.option("--nodes", type=int, metavar="N", help="Nodes of the gang."),
    click.option("--ranks", type=int, metavar="R", help="Ranks of each node."),
    click.option("--launcher", metavar="L", help="native, torchrun, deepspeed, mpirun or once."),
    click.option("--env", "-e", multiple=True, metavar="K=V", help="A variable for every rank; may be repeated."),
    click.option("--restarts", type=click.IntRange(0), metavar="N", help="How often a broken gang starts again."),
)


def spec_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add SPEC and the options that override its fields."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


class SpecCommand(click.Command):
    """A command whose words after ``--`` are the ranks' own command line."""

    usage: tuple[str, ...] = ("[SPEC.yaml]", "[OPTIONS]", "[-- COMMAND...]")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set the ranks' command aside; what is left is ours."""
        cut = args.index("--") if "--" in args else len(args)
        ours, command = args[:cut], args[cut + 1 :]
        if cut < len(args) and not command:
            raise click.UsageError("no command after --", ctx)
        if command and not command[0]:
            raise click.UsageError("the command after --: found '' as its program; is a variable empty?", ctx)
        try:
            rest = super().parse_args(ctx, list(ours))
        except click.UsageError as error:
            raise _with_dashes(error, ours) from error
        ctx.params["command"] = tuple(command)
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show the two forms in the first line of help."""
        return list(self.usage)


def _with_dashes(error: click.UsageError, args: Sequence[str]) -> click.UsageError:
    """Say where a command belongs when somebody leaves out the dashes: ``allranks run python train.py``."""
    start = next((i for i, word in enumerate(args) if re.fullmatch(r"(\S*/)?python[\d.]*|\S+\.py", word)), None)
    if start is None:
        return error
    words = ["python", *args[start:]] if args[start].endswith(".py") else args[start:]
    return click.UsageError(f"put the ranks' command after --, as in: -- {' '.join(words)}", error.ctx)


def _spec_files() -> list[str]:
    return sorted(str(path) for pattern in ("*.yaml", "*.yml") for path in Path().glob(pattern))


def job_of(options: Mapping[str, Any]) -> tuple[Job, Path]:
    """As ``spec_of``, for what must be a job. Raises SpecError for a service."""
    from allranks.spec.load import must_be_job

    spec, folder = spec_of(options)
    return must_be_job(spec, str(options["spec"])), folder


def spec_of(options: Mapping[str, Any]) -> tuple[Spec, Path]:
    """Make the spec of a file, of a command, or of both, and the folder its relative paths start from.

    Options win over the file. Raises UsageError for a wrong option, SpecError for a wrong file.
    """
    spec, command = options["spec"], options["command"]
    if spec is None and not command:
        if not Path(DEFAULT_SPEC).is_file():
            raise UsageError(
                "nothing to run: name a spec (allranks run job.yaml), give a command "
                "(allranks run --nodes 2 -- python train.py), or write a spec with: allranks init"
            )
        spec = DEFAULT_SPEC
        click.echo(f"spec {spec}, as none is named", err=True)
    changes = _changes(options)
    if spec is None:
        from allranks.spec.command import from_command

        return from_command(command, **changes), Path.cwd()
    if str(spec).endswith(".py"):
        raise UsageError(f"{spec} is no spec; put the ranks' command after --, as in: -- python {spec}")
    from allranks.spec.load import load

    folder = Path.cwd() if spec == "-" else Path(spec).absolute().parent
    return _changed(load(spec), changes, command), folder


def plan_of(engine: Engine, options: Mapping[str, Any]) -> Plan:
    """Render the job of these options for the engine. Raises UsageError and SpecError."""
    job, folder = job_of(options)
    return plan_job(engine, job, folder, options["pretended"])


def plan_job(engine: Engine, job: Job, folder: Path, other: str | None) -> Plan:
    """The same of a job, whose nodes may see what an ``other`` engine would give them."""
    if other and not isinstance(engine, CanPretend):
        from allranks.cli.choose import cannot

        raise UsageError(f"--as {other}: {cannot(engine, 'has no nodes that pretend', CanPretend)}")
    return engine.plan_as(job, folder, other) if other and isinstance(engine, CanPretend) else engine.plan(job, folder)


def _changes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the fields that options give a value to."""
    changes = {field: options[field] for field in ("name", "nodes", "ranks", "launcher") if options[field] is not None}
    if options["env"]:
        changes["env"] = dict(map(_pair, options["env"]))
    if options["restarts"] is not None:
        changes["failure"] = {"restarts": options["restarts"]}
    return changes


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--env {text}: allowed is NAME=VALUE")
    return name, value


def _changed(spec: Spec, changes: dict[str, Any], command: Sequence[str]) -> Spec:
    from pydantic import ValidationError

    from allranks.spec.wording import sentence

    values = spec.model_dump(exclude_unset=True)
    for field, value in changes.items():
        name = "ranks_per_node" if field == "ranks" else field
        values[name] = {**values.get(name, {}), **value} if isinstance(value, dict) else value
    if command:
        values["run"] = tuple(command)
    try:
        return type(spec).model_validate(values)
    except ValidationError as error:
        raise UsageError("\n".join(sentence(one, type(spec)) for one in error.errors())) from error
