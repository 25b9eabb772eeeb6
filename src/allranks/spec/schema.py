"""The spec as a JSON schema (draft 2020-12), for editors. It is made from the models, so it cannot differ from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from allranks.spec.job import Job
from allranks.spec.units import Duration, Quantity

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Describe ``kind: Job``: every field with its unit, default and the engines that honour it."""
    job = Job.model_json_schema(schema_generator=_WithDurations)
    for model in (job, *job["$defs"].values()):
        for field in model.get("properties", {}).values():
            _describe(field)
    # A file must say its kind; a Job made in Python need not.
    return {"$schema": DRAFT} | job | {"title": "allranks spec", "required": ["kind", *job["required"]]}


def text() -> str:
    """Write the schema as JSON."""
    return json.dumps(schema(), indent=2) + "\n"


class _WithDurations(GenerateJsonSchema):
    def encode_default(self, dft: Any) -> Any:
        """Write a default duration or quantity as it would stand in a file; pydantic leaves out what is no JSON."""
        return str(dft) if isinstance(dft, Duration | Quantity) else super().encode_default(dft)


def _describe(field: dict[str, Any]) -> None:
    field.pop("title", None)
    field["description"] = " ".join(_sentences(field))
    if field.get("default", 0) is None or isinstance(field.get("default"), dict):
        del field["default"]


def _sentences(field: dict[str, Any]) -> Iterator[str]:
    yield field["description"]
    default = field.get("default")
    if isinstance(default, str | int):
        yield f"Default: {json.dumps(default).strip(chr(34))}."
    yield f"Engines: {field.pop('engines')}."
