"""Where the key of a service is, and what is said where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.serving import key
from allranks.serving.folder import Unfit


def test_a_key_is_in_a_variable_or_in_a_file_or_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", " sesame\n")
    (tmp_path / "key").write_text("sesame\n")
    assert key.read(env="A_KEY") == key.read(file=str(tmp_path / "key")) == "sesame"
    assert key.read() == ""


@pytest.mark.parametrize(
    ("held", "message"),
    [(None, "cannot read"), (b" \n", "is empty; write the key into it"), (b"\xff", "cannot read")],
)
def test_a_file_without_a_key_is_told(tmp_path: Path, held: bytes | None, message: str) -> None:
    if held is not None:
        (tmp_path / "key").write_bytes(held)
    with pytest.raises(Unfit, match=f"api_key.file: .*{message}"):
        key.read(file=str(tmp_path / "key"))


def test_a_variable_that_is_empty_is_no_key_that_everybody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "  ")
    with pytest.raises(Unfit, match=r"api_key.env: A_KEY is not set in this shell; export it first"):
        key.read(env="A_KEY")
