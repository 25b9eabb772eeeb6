"""Whether a node can hold its ranks' part of a model is asked before the kernel answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.serving.folder import Unfit
from allranks.serving.room import available, must_fit


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({}, 8 * 2**20),
        ({"memory.max": "1048576"}, 2**20),
        ({"memory.max": "max"}, 8 * 2**20),
        ({"memory/memory.limit_in_bytes": "2097152"}, 2 * 2**20),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, 8 * 2**20),
    ],
)
def test_a_container_has_what_its_limit_leaves_of_the_machine(
    tmp_path: Path, limits: dict[str, str], wanted: int
) -> None:
    (tmp_path / "memory").mkdir()
    for name, text in limits.items():
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "meminfo").write_text("MemTotal:  99999 kB\nMemAvailable:    8192 kB\n")
    assert available(tmp_path, tmp_path / "meminfo") == wanted


def test_weights_that_are_more_than_that_are_refused_with_both_sizes() -> None:
    must_fit(10**9, 10**9)
    with pytest.raises(Unfit, match=r"take 16\.0 GB, and 8\.0 GB are free here; serve it over more nodes"):
        must_fit(16 * 10**9, 8 * 10**9)
