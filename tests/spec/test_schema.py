from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from allranks.spec.job import Job
from allranks.spec.schema import schema, text
from allranks.spec.service import Service
from allranks.spec.units import DURATION_PATTERN, QUANTITY_PATTERN, Duration, Quantity
from allranks.spec.wording import model_at


def fields() -> Iterator[tuple[str, dict[str, Any]]]:
    whole = schema()
    for name, model in whole["$defs"].items():
        for field, described in model.get("properties", {}).items():
            yield f"{name}.{field}", described


@pytest.mark.parametrize(("name", "described"), list(fields()))
def test_every_field_says_what_it_is_and_which_engines_honour_it(name: str, described: dict[str, Any]) -> None:
    assert re.fullmatch(r"[A-Z/].*\. (Default: .*\. )?Engines: [a-z, ]+\.", described["description"]), name
    assert ("default" not in described) or described["default"] == [] or "Default: " in described["description"]


def test_defaults_stand_in_the_schema_as_they_would_in_a_file() -> None:
    described = dict(fields())
    assert described["Failure.grace"]["default"] == "30s"
    assert described["Failure.grace"]["description"] == "Time between SIGTERM and SIGKILL. Default: 30s. Engines: all."
    assert described["Job.launcher"]["default"] == "native"


def test_a_file_must_have_kind_name_and_run_and_nothing_unknown() -> None:
    whole = schema()
    assert whole["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert whole["$defs"]["Job"]["required"] == ["kind", "name", "run"]
    assert whole["$defs"]["Service"]["required"] == ["kind", "name"]
    assert all(model["additionalProperties"] is False for model in whole["$defs"].values())


def test_the_schema_prints_as_json() -> None:
    assert json.loads(text()) == schema()


@pytest.mark.parametrize("value", ["90s", "1h30m", "500ms", "1m500ms", "7d", "", "s", "10", "1s1m", "1.5h"])
def test_the_pattern_of_durations_agrees_with_the_parser(value: str) -> None:
    assert bool(re.search(DURATION_PATTERN, value)) == _parses(Duration.parse, value)


@pytest.mark.parametrize("value", ["8", "500m", "1.5Gi", "1e3", "1E", "", "Gi", "-1", "1GB", "1Gie3", ".5", "1e"])
def test_the_pattern_of_quantities_agrees_with_the_parser(value: str) -> None:
    assert bool(re.search(QUANTITY_PATTERN, value)) == _parses(Quantity.parse, value)


def _parses(parse: Any, value: str) -> bool:
    try:
        parse(value)
    except ValueError:
        return False
    return True


def test_every_part_of_a_job_is_found_by_its_place() -> None:
    assert model_at(("engines", "mpijob")).__name__ == "MPIJobOptions"
    assert model_at(("volumes", 0)).__name__ == "Volume"
    assert issubclass(model_at(()), BaseModel)
    assert model_at(()) is Job
    assert model_at(("limits",), Service).__name__ == "Limits"
