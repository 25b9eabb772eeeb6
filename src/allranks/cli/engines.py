"""``allranks engines``: where a gang can run."""

from __future__ import annotations

import click

from allranks import engines
from allranks.cli import output as out


@click.command()
@out.output_option("json", "yaml")
def command(output: str | None) -> None:
    """List the engines: where a gang can run, and why one cannot be used here."""
    rows = _present()
    if output:
        out.write(rows, output)
        return
    width = max(len(str(row["name"])) for row in rows)
    for row in rows:
        state = "" if row["available"] else f" ({row['reason']})"
        click.echo(f"{row['name']:<{width}}  {row['summary']}{state}")


def _present() -> list[dict[str, object]]:
    found = [(engine, engine.available()) for engine in engines.all_engines()]
    return [_row(engine.name, engine.summary, reason) for engine, reason in found]


def _row(name: str, summary: str, reason: str) -> dict[str, object]:
    return {"name": name, "summary": summary, "available": not reason, "reason": reason}
