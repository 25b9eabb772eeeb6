"""Models to serve: small, with random weights, and a real tokenizer."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CONTEXT = 512
BASE = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = {"head_dim": 8, "sliding_window": 32}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "decoder_sparse_step": 1}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "cohere": {},
    "gemma2": WINDOW,
    "gemma3_text": WINDOW,
    "glm4": {"head_dim": 8},
    "gpt_oss": {**WINDOW, "num_local_experts": 4},
    "granite": {},
    "llama": {},
    "mistral": {"sliding_window": None},
    "mixtral": {"num_local_experts": 4},
    "olmo2": {},
    "phi": {},
    "phi3": {},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "qwen3_moe": {"head_dim": 8, **EXPERTS},
    "smollm3": {},
    "starcoder2": {},
}


def save(folder: Path, architecture: str = "llama", **changes: Any) -> Path:
    """Save a random model with sharp, well separated choices, so that rounding decides nothing."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(architecture, **{**BASE, **ARCHITECTURES[architecture], **changes})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(4)
    model.save_pretrained(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """A byte-level BPE of the help topics' first pages."""
    from pydoc_data.topics import topics

    train = runpy.run_path(str(ROOT / "examples" / "tinylm" / "train.py"))
    train["train_tokenizer"]("\n\n".join(list(topics.values())[:8])).save_pretrained(folder)
