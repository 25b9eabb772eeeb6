"""Loading a model, or a piece of it, where there is no room for it, or where its files are not all of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from allranks.serving import folder, shard
from allranks.serving.front import process
from allranks.serving.options import Options
from tests.serving.models import save, save_tokenizer

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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"num_hidden_layers": 3},
            "lack model.layers.2.input_layernorm.weight, .* and 6 more, which its config.json asks",
        ),
        (
            {"vocab_size": 10},
            r"lm_head.weight of the model in .* is \(1000, 64\) in its files, and \(10, 64\) by its conf",
        ),
        ({"hidden_size": "x"}, "config.json is not as a model's is: .* expected int, got str"),
    ],
    ids=["missing", "mismatched", "wrong type"],
)
def test_a_model_whose_files_are_not_what_its_config_says_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    config = save(tmp_path) / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    with pytest.raises(folder.Unfit, match=message):
        shard.load(str(tmp_path), "none", torch.float32, torch.device("cpu"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 3}, "lack model.layers.2."),
        ({"vocab_size": 10}, r"\(1000, 64\) in its files, and \(10, 64\)"),
    ],
    ids=["missing", "mismatched"],
)
def test_deepspeed_is_given_no_model_whose_files_do_not_fit(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    config = AutoConfig.from_pretrained(save(tmp_path), tie_word_embeddings=True)
    with torch.device("meta"):
        shard._must_fit(str(tmp_path), AutoModelForCausalLM.from_config(config))
        config.update(change)
        with pytest.raises(folder.Unfit, match=message):
            shard._must_fit(str(tmp_path), AutoModelForCausalLM.from_config(config))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("tokenizer.json", '{"a": 1}', "cannot be loaded: KeyError: 'added_tokens'"),
        ("tokenizer.json", '{"version": "1.0", "added_tokens": [], "model": 3}', "cannot be loaded: "),
        ("generation_config.json", "{", "cannot be loaded: OSError: "),
        ("generation_config.json", "[]", "cannot be loaded: TypeError: "),
        ("generation_config.json", '{"eos_token_id": "x"}', "eos_token_id is 'x', and has to be a token's number"),
    ],
    ids=["empty", "no model", "broken off", "list", "eos"],
)
def test_a_damaged_tokenizer_or_generation_config_ends_the_http_process_for_good(
    tmp_path: Path, file: str, text: str, message: str
) -> None:
    save_tokenizer(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(folder.Unfit, match=re.escape(message)):
        process._texts(Options(str(tmp_path)))
