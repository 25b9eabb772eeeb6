"""The plans that the examples' READMEs print are those that `allranks plan` prints.

To write them anew: GOLDEN_FILES=write pytest tests/examples/test_plans.py
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.examples.commands import EXAMPLES, allranks

BLOCK = re.compile(r"(\n    allranks (plan --engine \S+ \S+)\n\n```yaml\n)(.*?)(?=```\n)", re.S)
READMES = sorted(path for path in EXAMPLES.glob("*/README.md") if BLOCK.search(path.read_text()))


def test_every_classic_job_has_its_plan() -> None:
    assert [path.parent.name for path in READMES] == ["digits", "interactive", "photos", "pi"]


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_the_plan_of_a_readme_is_what_plan_prints(readme: Path) -> None:
    text = readme.read_text()
    now = BLOCK.sub(lambda found: found[1] + planned(found[2]), text)
    if os.environ.get("GOLDEN_FILES") == "write":
        readme.write_text(now)
    assert now == readme.read_text()


def planned(words: str) -> str:
    """What the command prints, but for the size of the agent, which has nothing to do with the example."""
    command = [*allranks(), *words.split()]
    done = subprocess.run(command, cwd=EXAMPLES.parent, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return re.sub(r"; all \d+ characters of it with -o yaml", "; all of it with -o yaml", done.stdout)
