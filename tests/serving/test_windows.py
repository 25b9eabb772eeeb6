"""A model with sliding windows is served without them where no text outgrows one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from transformers import AutoModelForCausalLM

from allranks.serving import shard, windows
from tests.serving.models import save

pytestmark = pytest.mark.torch
WINDOW = 32
PROMPT = torch.arange(3, 3 + WINDOW).reshape(1, -1)
SPARSE = {"use_sliding_window": True, "max_window_layers": 1}


def load(folder: Path, context: int) -> Any:
    return shard.load(str(folder), "none", torch.float32, torch.device("cpu"), context)


@pytest.mark.parametrize("architecture", windows.ONLY_A_MASK)
def test_within_its_window_a_model_is_the_same_without(tmp_path: Path, architecture: str) -> None:
    save(tmp_path, architecture, sliding_window=WINDOW, **(SPARSE if architecture.startswith("qwen") else {}))
    whole = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert windows.told(whole.config) == "it has sliding windows; with limits.context of at most 32 it is without"
    freed = load(tmp_path, WINDOW)
    assert windows.told(freed.config) == ""
    with torch.inference_mode():
        assert torch.equal(freed(PROMPT).logits, whole(PROMPT).logits)
    assert windows.told(load(tmp_path, WINDOW + 1).config)


@pytest.mark.parametrize("architecture", ["gemma2", "gpt_oss"])
def test_what_is_more_than_a_mask_stays(tmp_path: Path, architecture: str) -> None:
    save(tmp_path, architecture)
    assert windows.told(load(tmp_path, WINDOW).config) == "it has sliding windows"


def test_a_model_without_windows_is_left_alone(tmp_path: Path) -> None:
    save(tmp_path)
    assert windows.told(load(tmp_path, WINDOW).config) == ""
