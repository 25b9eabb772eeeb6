"""The examples' job files, without running them."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.spec.load import load, load_job
from allranks.spec.service import Service
from tests.examples.commands import EXAMPLES

FOLDERS = sorted(path.parent for path in EXAMPLES.glob("*/job.yaml"))


def test_the_examples_are_these() -> None:
    assert [folder.name for folder in FOLDERS] == ["digits", "interactive", "photos", "pi", "restart", "tinylm"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_job_is_named_after_its_folder_and_its_program_is_there(folder: Path) -> None:
    job = load_job(folder / "job.yaml")
    assert job.name == folder.name
    assert (folder / job.argv[1]).is_file()
    assert (folder / "README.md").is_file()


def test_pi_has_forty_ranks_on_two_nodes() -> None:
    job = load_job(EXAMPLES / "pi" / "job.yaml")
    assert (job.nodes, job.ranks) == (2, 20)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*/service.yaml")), ids=lambda file: file.parent.name)
def test_a_service_is_named_after_its_folder_and_makes_a_gang(file: Path) -> None:
    service = load(file)
    assert isinstance(service, Service)
    assert service.name == service.gang(None if service.run else ("x",)).name == file.parent.name
    assert (file.parent / "README.md").is_file()
