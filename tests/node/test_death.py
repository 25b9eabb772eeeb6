"""What a rank's end says of a disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.node.death import describe

ONE = 1 << 8  # the wait status of exit code 1


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (
            "allranks.checkpoint.DiskFull: rank 3 could not save out/step-1.pt: no space left on its disk",
            "allranks.checkpoint.DiskFull: rank 3 could not save out/step-1.pt: no space left on its disk",
        ),
        (
            "OSError: [Errno 28] No space left on device: 'out/step-1.pt'",
            "OSError: [Errno 28] No space left on device: 'out/step-1.pt'",
        ),
        (
            "RuntimeError: [enforce fail at inline_container.cc:672] . PytorchStreamWriter failed writing file data/0: "
            "file write failed",
            "RuntimeError: [enforce fail at inline_container.cc:672] . PytorchStreamWriter failed writing file data/0: "
            "file write failed (torch says this when the disk that it saves to is full)",
        ),
    ],
    ids=["by our save", "by the job's own code", "by torch, which hides it"],
)
def test_a_full_disk_is_told_as_such(tmp_path: Path, last: str, message: str) -> None:
    log = tmp_path / "rank-3.log"
    log.write_text(f'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    save()\n{last}\n')
    death = describe(3, 1, ONE, str(log))
    assert (death.kind, death.message) == ("exception", message)
