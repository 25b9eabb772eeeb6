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
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "gemma2": {"head_dim": 8, "sliding_window": 32},
    "granite": {},
    "phi3": {},
    "olmo2": {},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "head_dim": 8,
        "decoder_sparse_step": 1,
    },
    "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64},
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
