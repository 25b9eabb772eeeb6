"""``allranks plan``: what would be started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from allranks import engines
from allranks.cli import output as out
from allranks.cli.choose import cannot
from allranks.cli.spec_options import SpecCommand, plan_job, spec_of, spec_options

if TYPE_CHECKING:
    from allranks.engines.engine import Engine, Plan


@click.command(cls=SpecCommand)
@spec_options
@click.option("--check", is_flag=True, help="Have the cluster's API server judge it (server-side dry-run).")
@out.output_option("yaml", "json")
def command(engine: str, check: bool, output: str | None, **options: object) -> None:
    """Show what `run` or `serve` would start, as YAML, and what the engine does not honour.

    Nothing is started or written. Notes go to stderr. What nobody reads is cut short, unless -o says otherwise.
    """
    chosen = engines.get(engine)
    plan = _plan(chosen, options)
    if check:
        _check(chosen, plan)
    for note in plan.notes:
        click.echo(f"note: {note}", err=True)
    if output == "json":
        out.write({"name": plan.name, "engine": plan.engine, "documents": plan.documents, "notes": plan.notes}, "json")
    else:
        from allranks.spec import write

        documents = plan.documents if output else [write.shortened(document) for document in plan.documents]
        click.echo(write.documents(documents), nl=False)


def _plan(engine: Engine, options: Mapping[str, Any]) -> Plan:
    from allranks.spec.job import Job

    spec, folder = spec_of(options)
    if isinstance(spec, Job):
        return plan_job(engine, spec, folder, options["pretended"])
    from allranks.cli.serve import plan_of

    return plan_of(engine, spec, folder)


def _check(engine: Engine, plan: Plan) -> None:
    """Raise EngineError for what the engine would refuse; say on stderr that there is nothing."""
    from allranks.engines.engine import CanCheck

    if not isinstance(engine, CanCheck):
        raise cannot(engine, "has nobody to check a plan", CanCheck)
    notes = engine.check(plan)
    objects = ", ".join(f"{document['kind']} {document['metadata']['name']}" for document in plan.documents)
    click.echo(f"checked: the cluster would take {objects}", err=True)
    for note in notes:
        click.echo(f"checked: {note}", err=True)
