"""A model that is cut gives the very tokens of the whole one, for every architecture that is said to be covered."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from allranks.serving.folder import DEEPSPEED, TRANSFORMERS
from tests.serving.models import ARCHITECTURES, save

pytestmark = [pytest.mark.gang, pytest.mark.torch]


def test_every_covered_architecture_has_a_model_here() -> None:
    assert set(ARCHITECTURES) == TRANSFORMERS | DEEPSPEED


@pytest.mark.parametrize(
    ("wanted", "ranks"),
    [
        ([f"transformers/{name}" for name in sorted(TRANSFORMERS)] + [f"deepspeed/{n}" for n in sorted(DEEPSPEED)], 2),
        (["transformers/llama", "deepspeed/llama"], 4),
    ],
    ids=["2", "4"],
)
def test_requests_that_come_one_after_the_other_get_the_tokens_of_the_whole_model(
    tmp_path: Path, wanted: list[str], ranks: int
) -> None:
    for name in {name.partition("/")[2] for name in wanted}:
        save(tmp_path / name, name)
    gang = ["run", "--name", "exact", "--ranks", str(ranks), "--restarts", "0", "--env", f"PYTHONPATH={Path.cwd()}"]
    program = [sys.executable, "-m", "tests.serving.exact", str(tmp_path), *wanted]
    done = subprocess.run(
        [sys.executable, "-m", "allranks", *gang, "--", *program], capture_output=True, text=True, timeout=280
    )
    results = [line.split("RESULT ")[1] for line in done.stdout.splitlines() if "RESULT " in line]
    assert results == [f"{name} 6/6 []" for name in wanted], done.stdout[-3000:] + done.stderr[-1000:]
