"""``allranks plan``: what would be started."""

from __future__ import annotations

import click

from allranks import engines
from allranks.cli import output as out
from allranks.cli.spec_options import SpecCommand, plan_of, spec_options


@click.command(cls=SpecCommand)
@spec_options
@out.output_option("yaml", "json")
def command(engine: str, output: str | None, **options: object) -> None:
    """Show what `run` would start, as YAML, and what the engine does not honour.

    Nothing is started or written. Notes go to stderr. What nobody reads is cut short, unless -o says otherwise.
    """
    plan = plan_of(engines.get(engine), options)
    for note in plan.notes:
        click.echo(f"note: {note}", err=True)
    if output == "json":
        out.write({"name": plan.name, "engine": plan.engine, "documents": plan.documents, "notes": plan.notes}, "json")
    else:
        from allranks.spec import write

        documents = plan.documents if output else [write.shortened(document) for document in plan.documents]
        click.echo(write.documents(documents), nl=False)
