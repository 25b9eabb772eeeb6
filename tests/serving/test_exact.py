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


CUTS = [f"transformers/{name}" for name in sorted(TRANSFORMERS)] + [f"deepspeed/{name}" for name in sorted(DEEPSPEED)]


@pytest.mark.parametrize(
    ("wanted", "ranks", "requests", "concurrent"),
    [
        (CUTS, 2, 6, 4),
        (["transformers/llama", "deepspeed/llama"], 4, 6, 4),
        pytest.param(CUTS, 2, 32, 32, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
        pytest.param(CUTS, 4, 32, 32, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
    ids=["2 ranks", "4 ranks", "2 ranks 32 requests", "4 ranks 32 requests"],
)
def test_requests_that_come_one_after_the_other_get_the_tokens_of_the_whole_model(
    tmp_path: Path, wanted: list[str], ranks: int, requests: int, concurrent: int
) -> None:
    for name in {name.partition("/")[2] for name in wanted}:
        save(tmp_path / name, name)
    gang = ["run", "--name", "exact", "--ranks", str(ranks), "--restarts", "0", "--env", f"PYTHONPATH={Path.cwd()}"]
    program = [sys.executable, "-m", "tests.serving.exact", str(tmp_path), str(requests), str(concurrent), *wanted]
    done = subprocess.run(
        [sys.executable, "-m", "allranks", *gang, "--", *program], capture_output=True, text=True, timeout=1700
    )
    results = [line.split("RESULT ")[1] for line in done.stdout.splitlines() if "RESULT " in line]
    everything = [f"{name} {requests}/{requests} []" for name in wanted]
    assert results == everything, done.stdout[-3000:] + done.stderr[-1000:]
