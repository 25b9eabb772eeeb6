"""How a contract tells what changed, and what it passes over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import contract


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(contract, "HERE", tmp_path)
    return tmp_path


def test_each_place_that_differs_is_one_line() -> None:
    old = {"env": {"RANK": "0", "PORT": "1"}, "modes": ["0600", "0644"]}
    new = {"env": {"RANK": "0", "PORT": "2", "HOST": "a"}, "modes": ["0600", "0640"]}
    assert list(contract.differences(old, new)) == [
        'env / HOST: new, "a"',
        'env / PORT: was "1", is "2"',
        'modes[1]: was "0644", is "0640"',
    ]
    assert list(contract.differences(new, {})) == ["env: gone, was " + '{"RANK": "0", "PORT": "2", "HOST": "a"}',
                                                   'modes: gone, was ["0600", "0640"]']  # fmt: skip


def test_a_record_is_held_against_what_was_written_down(folder: Path) -> None:
    contract.compare("op", "v1", "job", {"env": "a"}, write=True)
    contract.compare("op", "v1", "job", {"env": "a"}, write=False)
    with pytest.raises(AssertionError, match='env: was "a", is "b"'):
        contract.compare("op", "v1", "job", {"env": "b"}, write=False)


def test_a_new_version_is_told_apart_by_what_it_changed_in_the_one_before(folder: Path) -> None:
    contract.compare("op", "v1", "job", {"env": "a"}, write=True)
    with pytest.raises(AssertionError, match=r'op v2 .* than op-v1.json says:\n  env: was "a", is "b"\n.* --record'):
        contract.compare("op", "v2", "job", {"env": "b"}, write=False)


def test_a_version_that_was_never_recorded_says_how_to_record_it(folder: Path) -> None:
    with pytest.raises(AssertionError, match=r"there is no .*op-v1.json; write it: the same test with --record"):
        contract.compare("op", "v1", "job", {}, write=False)
