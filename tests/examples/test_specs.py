"""The examples' job files, without running them."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.spec.load import load_job
from tests.examples.commands import EXAMPLES

FOLDERS = sorted(path.parent for path in EXAMPLES.glob("*/job.yaml"))


def test_the_examples_are_these() -> None:
    assert [folder.name for folder in FOLDERS] == ["digits", "interactive", "pi", "restart"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_job_is_named_after_its_folder_and_its_program_is_there(folder: Path) -> None:
    job = load_job(folder / "job.yaml")
    assert job.name == folder.name
    assert (folder / job.argv[1]).is_file()
    assert (folder / "README.md").is_file()


def test_pi_has_forty_ranks_on_two_nodes() -> None:
    job = load_job(EXAMPLES / "pi" / "job.yaml")
    assert (job.nodes, job.ranks) == (2, 20)
