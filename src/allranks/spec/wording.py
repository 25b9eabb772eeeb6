"""What a person is told about a value that does not fit: what was found, what is allowed, the nearest name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from allranks.spec.field import NAME
from allranks.spec.job import Job
from allranks.spec.scalar import shown

# Names that other launchers and manifests use for what we call otherwise.
ELSEWHERE = {
    "args": "run",
    "cmd": "run",
    "command": "run",
    "entrypoint": "run",
    "script": "run",
    "workers": "nodes",
    "worker": "nodes",
    "replicas": "nodes",
    "num_nodes": "nodes",
    "nnodes": "nodes",
    "nproc_per_node": "ranks_per_node",
    "num_proc_per_node": "ranks_per_node",
    "num_gpus": "resources.gpus",
    "gpu": "resources.gpus",
    "environment": "env",
    "working_dir": "workdir",
    "cwd": "workdir",
    "timeout": "failure.deadline",
    "max_restarts": "failure.restarts",
    "retries": "failure.restarts",
    "backoff_limit": "failure.restarts",
    "max_retries": "failure.restarts",
}
EXAMPLES = {"kind": "kind: Job", "name": "name: digits", "run": "run: python train.py", "path": "path: /data"}


def sentence(error: ErrorDetails, spec: type[BaseModel] = Job) -> str:
    """One validation error of pydantic about a ``spec``, in our words."""
    kind, location = error["type"], error["loc"]
    if kind == "extra_forbidden":
        return unknown_field(location, spec)
    if kind == "missing":
        return _missing(location)
    if not location:
        return _allowed(error)
    field = dotted(location)
    return f"{field}: found {_found(error['input'])}; {_allowed(error)}"


def unknown_field(location: tuple[int | str, ...], spec: type[BaseModel]) -> str:
    """Name the field, where it stands, and the nearest that there is."""
    name, model = str(location[-1]), model_at(location[:-1], spec)
    inside = f" in {dotted(location[:-1])}" if len(location) > 1 else ""
    return f"unknown field {shown(name)}{inside}; {_way_out(name, model, spec)}"


def _way_out(name: str, model: type[BaseModel], spec: type[BaseModel]) -> str:
    near = nearest_field(name, model, spec)
    if near:
        outside = near not in model.model_fields and "." not in near
        return f"did you mean {near!r}{' at the top level' if outside else ''}?"
    return f"allowed: {', '.join(model.model_fields)}"


def nearest_field(name: str, model: type[BaseModel], spec: type[BaseModel] = Job) -> str:
    """Find the field that was meant: of this model, else of a part of the spec by its whole path, else nothing."""
    snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name[:60]).strip("_")
    snake = snake.replace("-", "_")
    for candidate in (snake, ELSEWHERE.get(snake, "")):
        if candidate in model.model_fields:
            return candidate
    near = nearest(snake, model.model_fields)
    if near:
        return near
    anywhere = _fields_of_parts(spec)
    meant = ELSEWHERE.get(snake, snake)
    return meant if meant in anywhere.values() else anywhere.get(snake, "")


def _fields_of_parts(spec: type[BaseModel]) -> dict[str, str]:
    """Every field of a spec and of its direct parts, by its bare name: ``gpus`` -> ``resources.gpus``."""
    paths: dict[str, str] = {}
    for part in ("resources", "network", "schedule", "failure", "logs", "limits"):
        if part in spec.model_fields:
            for field in model_at((part,), spec).model_fields:
                paths.setdefault(field, f"{part}.{field}")
    return paths | {field: field for field in spec.model_fields}


def nearest(name: str, names: Iterable[str]) -> str:
    """Find the one name that is close enough to be a slip of the pen, or nothing."""
    by_lower = {candidate.lower(): candidate for candidate in names}
    close = get_close_matches(name[:60].lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else ""


def model_at(location: tuple[int | str, ...], spec: type[BaseModel] = Job) -> type[BaseModel]:
    """Find the model of the part of a spec at this place."""
    model = spec
    for step in location:
        if isinstance(step, str) and step in model.model_fields:
            model = _model_in(model.model_fields[step].annotation) or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def dotted(location: tuple[int | str, ...]) -> str:
    """``volumes[0].path``; what pydantic adds for itself is left out."""
    if location[-1:] == ("[key]",):
        location = location[:-1]
    if location[:1] == ("run",):
        location = location[:1] + location[2:]
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location).removeprefix(".")


def _missing(location: tuple[int | str, ...]) -> str:
    name = str(location[-1])
    inside = f" in {dotted(location[:-1])}" if len(location) > 1 else ""
    return f"missing field {name!r}{inside}; write for example '{EXAMPLES[name]}'"


def _found(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, BaseModel):
        return f"a {type(value).__name__}"
    return shown(value) if isinstance(value, str) else shown(value).strip("'")


WHOLE = "allowed is a whole number"
MAPPING = "allowed is a mapping, lines of 'name: value'"
LIST = "allowed is a list"
TEXT = "allowed is text"
KINDS = "'Job' or 'Service'"
ALLOWED = {
    "int_type": WHOLE,
    "int_from_float": WHOLE,
    "bool_type": "allowed is true or false",
    "string_type": TEXT,
    "dict_type": MAPPING,
    "model_type": MAPPING,
    "model_attributes_type": MAPPING,
    "tuple_type": LIST,
    "string_too_short": "allowed is at least one character",
}


def _allowed(error: ErrorDetails) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "greater_than_equal":
        return f"{WHOLE}, {context['ge']} or more"
    if kind == "less_than_equal":
        return f"{WHOLE}, {context['le']} or less"
    if kind == "string_pattern_mismatch":
        return _pattern_advice(context["pattern"], error["input"])
    if kind == "literal_error":
        return _choice(KINDS if error["loc"] == ("kind",) else context["expected"], error["input"])
    return ALLOWED.get(kind, error["msg"])


def _pattern_advice(pattern: str, found: str) -> str:
    if pattern != NAME:
        return "allowed is secret/NAME or configmap/NAME"
    if len(found) > 40:
        return f"that is {len(found)} characters; allowed are 40"
    return "allowed are a-z, 0-9 and '-', first a letter, last no '-'"


def _choice(expected: str, found: object) -> str:
    """Read pydantic's own list of choices: ``'a', 'b' or 'c'``."""
    names = expected.replace(" or ", ", ").replace("'", "").split(", ")
    near = nearest(found, names) if isinstance(found, str) else ""
    return f"allowed: {', '.join(names)}" + (f"; did you mean {near!r}?" if near else "")
