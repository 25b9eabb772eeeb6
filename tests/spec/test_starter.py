from __future__ import annotations

import re

from allranks.spec.load import parse_job
from allranks.spec.starter import STARTER

OPTION = re.compile(r"^( *)#(?=\S)", re.MULTILINE)


def test_the_starter_loads_as_it_is() -> None:
    assert parse_job(STARTER).world_size == 4


def test_the_starter_loads_with_all_its_options_taken() -> None:
    job = parse_job(OPTION.sub(r"\1", STARTER))
    assert job.resources.gpus == 2
    assert job.failure.deadline


def test_each_option_of_the_starter_loads_alone() -> None:
    options = list(OPTION.finditer(STARTER))
    assert len(options) > 10
    for option in options:
        assert parse_job(STARTER[: option.start()] + option[1] + STARTER[option.end() :]).name == "my-job"
