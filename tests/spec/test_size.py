"""What no process can be given is refused before anything starts, with its size and what is allowed."""

from __future__ import annotations

import subprocess

import pytest
from pydantic import ValidationError

from allranks.spec.job import Job
from allranks.spec.size import LONGEST


def starts(words: list[str], env: dict[str, str]) -> bool:
    try:
        return subprocess.run(["true", *words], env=env, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.parametrize("beyond", [0, 1])
def test_the_longest_variable_and_word_are_the_longest_that_linux_takes(beyond: int) -> None:
    value, word = "x" * (LONGEST - len("A=") - 1 + beyond), "x" * (LONGEST - 1 + beyond)
    assert starts([], {"A": value}) is starts([word], {}) is (not beyond)
    for field, size in ({"env": {"A": value}}, LONGEST + beyond), ({"run": ("true", word)}, LONGEST + beyond):
        made = {"name": "a", "run": "true", **field}
        if not beyond:
            Job.model_validate(made)
            continue
        with pytest.raises(ValidationError, match=rf"{size:,} bytes.*allowed are {LONGEST:,}.*put it into a file"):
            Job.model_validate(made)


def test_variables_and_words_together_have_a_limit_too() -> None:
    env = {f"A{number}": "x" * 100_000 for number in range(10)}
    Job(name="a", run=("true", *["x" * 100_000] * 9), env=env)
    with pytest.raises(ValidationError, match=r"run and env together take 2,\d+,\d+ bytes; allowed are 2,031,616"):
        Job(name="a", run=("true", *["x" * 100_000] * 11), env=env)
