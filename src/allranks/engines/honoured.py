"""Which fields of a job an engine does not honour: each becomes a note of the plan, none is dropped in silence.

A field's own description (``spec/``) lists the engines that honour it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel

    from allranks.spec.job import Job


ANOTHERS = {"engines": "it is for another engine"}
"""Why no engine honours the options of the others."""


def notes(job: Job, engine: str, why_not: Mapping[str, str], settled: Collection[str] = ()) -> Iterator[str]:
    """One line for each field that somebody set, to another value than its default, and this engine does not honour.

    ``why_not`` says why by a field's path or the nearest one above it; a path in it is told of even if the engine
    honours the field for others. ``settled`` are paths that need no word, whatever the field's description says.
    """
    for path in _asked(job, "", engine, why_not):
        if not any(path == known or path.startswith(f"{known}.") for known in settled):
            yield f"{path}: not used by engine {engine}: {reason(path, why_not)}"


def _asked(part: BaseModel, above: str, engine: str, why_not: Mapping[str, str]) -> Iterator[str]:
    from pydantic import BaseModel

    for name, field in type(part).model_fields.items():
        value, path = getattr(part, name), f"{above}{name}"
        if name not in part.model_fields_set or value == field.get_default(call_default_factory=True):
            continue
        if isinstance(value, BaseModel):
            yield from _asked(value, f"{path}.", engine, why_not)
        elif path in why_not or not _honours(field.json_schema_extra, path, engine):
            yield path


def _honours(extra: object, path: str, engine: str) -> bool:
    named = extra.get("engines") if isinstance(extra, dict) else None
    if named == "its own":
        return path.startswith(f"engines.{engine}.")
    return isinstance(named, str) and ("all" in named.split() or engine in named.split(", "))


def reason(path: str, why_not: Mapping[str, str]) -> str:
    """What ``why_not`` says of a path, or of the nearest one above it."""
    known = {**ANOTHERS, **why_not}
    while path not in known and "." in path:
        path = path.rpartition(".")[0]
    return known.get(path, "this engine has no such thing")
