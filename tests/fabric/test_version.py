"""Which NCCL a program will load is seen without loading it."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.fabric.tree import open_tree
from allranks.fabric.version import find_version, parse_version, shown


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.18.5", "2.18.5"), ("2.21", "2.21"), ("2.18.5-1", "2.18.5"), ("2.26.2+cuda12.4", "2.26.2"),
        ("2", None), ("3.0.1", None), ("", None), ("2.x", None), ("2.18.5.6.7.8.9.0.1.2.3.4.5.6.7.8", None),
    ],
)  # fmt: skip
def test_versions_are_read_as_people_write_them(text: str, version: str | None) -> None:
    parsed = parse_version(text)
    assert (shown(parsed) if parsed else None) == version


def test_the_wheel_beside_the_ranks_python_comes_before_the_systems_library(tmp_path: Path) -> None:
    packages = tmp_path / "venv/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libnccl.so.2.19.3").touch()
    env, root = {"LD_LIBRARY_PATH": f"{tmp_path}/lib"}, open_tree("/")
    python = str(tmp_path / "venv/bin/python")
    assert find_version(root, python, env) == (2, 19, 3)
    (packages / "nvidia_nccl_cu12-2.26.2.post1.dist-info").mkdir()
    assert find_version(root, python, env) == (2, 26, 2)
