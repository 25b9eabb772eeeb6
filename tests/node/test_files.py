"""What we write is there whole, or as it was before."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.node.files import write_whole


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(str(file), "new \ud800")
    assert file.read_text() == "old"
    write_whole(str(file), "new", mode=0o600)
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("new", 0o600)
    assert list(tmp_path.iterdir()) == [file]
