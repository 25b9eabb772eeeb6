"""Loading a model, or a piece of it, where there is no room for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from tests.serving.models import save

pytestmark = pytest.mark.torch
PROGRAM = """
import resource, sys
from pathlib import Path
import torch
from transformers import LlamaForCausalLM
from allranks.serving import folder, shard
room = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (int(sys.argv[2]) << 20)
resource.setrlimit(resource.RLIMIT_AS, (room, room))
try:
    shard.load(sys.argv[1], "none", torch.float32, torch.device("cpu"))
except folder.Unfit as unfit:
    print(unfit)
"""


@pytest.mark.parametrize("room", [30, 200])
def test_a_model_that_memory_is_too_small_for_is_refused_in_one_line(tmp_path: Path, room: int) -> None:
    save(tmp_path, hidden_size=1024, intermediate_size=4096, num_hidden_layers=2)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(room)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    (line,) = done.stdout.strip().splitlines() or [done.stderr[-1000:]]
    assert line.startswith("out of memory while the model was loaded: ")
    assert line.endswith("serve it with more ranks")
