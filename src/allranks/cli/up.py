"""``allranks up``: start a gang that is idle until it is given a command."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import click

from allranks import engines
from allranks.cli import say
from allranks.cli.choose import cannot
from allranks.cli.spec_options import DEFAULT_SPEC, SpecCommand, plan_of, spec_options


@click.command(cls=SpecCommand)
@spec_options
def command(engine: str, **options: object) -> int:
    """Start an idle gang, for `exec` and `shell`, and return once it is complete.

    Everything is as `run` has it, but no rank is started. What the file's `run` (or a command after --) needs is
    imported at once, so that the first `exec` of it starts in milliseconds. It stays until: allranks cancel NAME
    """
    from allranks.cli.follow import until_idle
    from allranks.engines.engine import CanUp

    chosen = engines.get_usable(engine)
    if not isinstance(chosen, CanUp):
        raise cannot(chosen, "keeps no gang that is idle", CanUp)
    plan = plan_of(chosen, options if _says_what_runs(options) else {**options, **_any_python(options)})
    with say.notes(plan.notes):
        run = chosen.up(plan)
    return until_idle(run)


def _says_what_runs(options: Mapping[str, object]) -> bool:
    return bool(options["spec"] or options["command"]) or Path(DEFAULT_SPEC).is_file()


def _any_python(options: Mapping[str, object]) -> dict[str, object]:
    """What the gang will run is not known yet: most likely a python program."""
    python = next((name for name in ("python", "python3") if shutil.which(name)), "true")
    return {"command": (python,), "name": options["name"] or "gang"}
