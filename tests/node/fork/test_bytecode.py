"""The zygote compiles a module without a .pyc once, not at every start."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from allranks.node.fork.bytecode import UNUSED, Bytecode

NAME = "module_without_bytecode"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The source of a module that python will write no bytecode of."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / f"{NAME}.py"
    source.write_text("VALUE = 1\n")
    yield source
    sys.modules.pop(NAME, None)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that were compiled."""
    seen: list[str] = []
    ordinary = SourceFileLoader.source_to_code

    def source_to_code(self, data, path, *, _optimize=-1):  # type: ignore[no-untyped-def]
        seen.append(str(path))
        return ordinary(self, data, path, _optimize=_optimize)

    monkeypatch.setattr(SourceFileLoader, "source_to_code", source_to_code)
    return seen


def value(store: Path) -> int:
    sys.modules.pop(NAME, None)
    importlib.invalidate_caches()
    with Bytecode(str(store)).in_use():
        found: int = importlib.import_module(NAME).VALUE
    return found


def kept(store: Path) -> list[Path]:
    return [path for path in store.rglob("*") if path.is_file()]


def test_code_is_compiled_once(module: Path, compiled: list[str], tmp_path: Path) -> None:
    assert [value(tmp_path / "store") for _ in range(3)] == [1, 1, 1]
    assert compiled == [str(module)]
    assert sys.modules[NAME].__cached__ == importlib.util.cache_from_source(str(module))


def test_a_changed_source_is_compiled_anew(module: Path, compiled: list[str], tmp_path: Path) -> None:
    value(tmp_path / "store")
    module.write_text("VALUE = 22\n")
    assert value(tmp_path / "store") == 22
    assert len(compiled) == 2
    module.write_text("VALUE = 33\n")  # of the same size, so told by its time
    os.utime(module, ns=(1, 1))
    assert value(tmp_path / "store") == 33


@pytest.mark.parametrize("damage", [b"", b"\0" * 40, None])
def test_what_cannot_be_read_is_compiled(module: Path, tmp_path: Path, damage: bytes | None) -> None:
    value(tmp_path / "store")
    (code,) = kept(tmp_path / "store")
    code.write_bytes(code.read_bytes()[:-3] if damage is None else code.read_bytes()[:16] + damage)
    assert value(tmp_path / "store") == 1


def test_a_store_that_cannot_be_written_does_no_harm(module: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert value(tmp_path / "file" / "store") == 1


def test_bytecode_that_python_keeps_itself_is_left_to_it(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert [value(tmp_path / "store") for _ in range(2)] == [1, 1]
    assert not kept(tmp_path / "store")


def test_imports_are_as_before_afterwards(module: Path, tmp_path: Path) -> None:
    value(tmp_path / "store")
    assert "get_code" not in vars(SourceFileLoader)


def test_code_of_an_installation_that_nobody_used_for_long_is_dropped(module: Path, tmp_path: Path) -> None:
    old = tmp_path / "store" / "old"
    old.mkdir(parents=True)
    os.utime(old, (os.stat(old).st_atime, os.stat(old).st_mtime - UNUSED - 60))
    value(tmp_path / "store")
    assert not old.exists()
