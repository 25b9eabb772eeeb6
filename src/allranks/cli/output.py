"""Output for programs (``-o json``, ``-o yaml``) and the console for people."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from allranks.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console


LEVELS = {"error": "red", "warning": "yellow"}
"""The colour of a finding, by its level."""


def output_option(*formats: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add ``-o``; without it the command writes for people."""
    return click.option("-o", "--output", type=click.Choice(formats), help="Write for programs.")


def must_have_folder(option: str, path: str) -> None:
    """Raise UsageError for a file that could not be written at the end of all work."""
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise UsageError(f"--{option} {path}: there is no folder {folder}")


def must_draw(path: str, otherwise: str = "") -> None:
    """The same of ``--png``, which needs a library too; ``otherwise`` is a way without it."""
    from importlib.util import find_spec

    must_have_folder("png", path)
    if find_spec("matplotlib") is None:
        raise UsageError(f"--png needs matplotlib; next: pip install 'allranks[bench]'{otherwise}")


def write(value: Any, output: str) -> None:
    """Write one value on stdout as JSON or YAML."""
    if output == "json":
        import json

        click.echo(json.dumps(value, indent=2))
    else:
        click.echo(as_yaml(value), nl=False)


def as_yaml(*documents: Any) -> str:
    """YAML of one or several documents, keys in their own order."""
    import io

    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 4096
    stream = io.StringIO()
    yaml.dump_all(documents, stream)
    return stream.getvalue()


def console(*, stderr: bool = False) -> Console:
    """A console that wraps nothing when nobody looks at it."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=None if stream.isatty() else 200)
