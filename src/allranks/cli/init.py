"""``allranks init``: a spec to start from."""

from __future__ import annotations

from pathlib import Path

import click

from allranks.errors import UsageError


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default=Path("job.yaml"))
@click.option("--schema", is_flag=True, help="Print the JSON schema instead, for editors.")
def command(path: Path, schema: bool) -> None:
    """Write a commented spec to PATH (default: job.yaml), to start from.

    A file that is there already is never overwritten.
    """
    if schema:
        from allranks.spec.schema import text

        click.echo(text(), nl=False)
        return
    from allranks.spec.starter import STARTER

    file = path / "job.yaml" if path.is_dir() else path
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(STARTER)
    except FileExistsError:
        raise UsageError(f"{file} exists and is left as it is; name another: allranks init OTHER.yaml") from None
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from error
    click.echo(f"wrote {file}; next: allranks run {file}")
