"""The spec as a JSON schema (draft 2020-12), for editors. It is made from the models, so it cannot differ from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from allranks.spec.job import Job
from allranks.spec.service import Service
from allranks.spec.units import Duration, Quantity

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Describe every kind: each field with its unit, default and the engines that honour it."""
    kinds = [(Job, "validation"), (Service, "validation")]
    _, whole = models_json_schema(kinds, schema_generator=_WithDurations)  # type: ignore[arg-type]
    models = whole["$defs"]
    for model in models.values():
        for field in model.get("properties", {}).values():
            _describe(field)
    for kind in ("Job", "Service"):  # a file must say its kind; one made in Python need not
        models[kind]["required"] = ["kind", *models[kind]["required"]]
    is_service = {"properties": {"kind": {"const": "Service"}}, "required": ["kind"]}
    choice = {"if": is_service, "then": {"$ref": "#/$defs/Service"}, "else": {"$ref": "#/$defs/Job"}}
    return {"$schema": DRAFT, "title": "allranks spec", **choice, "$defs": models}


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
