"""Which attention a model on a GPU gets: the fast path of continuous batching exists for flash attention alone.

With transformers' plain ``sdpa`` a batch is one dense mask, without graphs and slower than ``generate``. So: a
flash-attention package where there is one, else kernels of our own (``paged``), else ``sdpa``, and it is said loudly.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from allranks.serving import windows

HALF = (torch.bfloat16, torch.float16)
LARGEST_HEAD = 256


def choose(model: Any) -> str:
    """Set the fastest attention that this model can have here; return its name, with the reason where it is slow.

    On a CPU that is the one that it has already.
    """
    if model.device.type != "cuda":
        return str(model.config._attn_implementation)
    from transformers.utils.import_utils import is_flash_attn_2_available, is_flash_attn_3_available

    why_not = unfit(model)
    if model.dtype in HALF:
        for version, there in ((3, is_flash_attn_3_available), (2, is_flash_attn_2_available)):
            if there():
                model.set_attn_implementation(f"flash_attention_{version}")
                return f"flash-attention {version}"
    if not why_not:
        from allranks.serving import paged

        paged.install()
        model.config._attn_implementation = "flash_attention_2"  # its setter would look for the package
        return "allranks' paged kernels"
    plain = "sdpa" if model._supports_sdpa else "eager"
    model.set_attn_implementation(plain)
    return f"{plain}, WITHOUT the fast path, several times slower: {why_not}"


def unfit(model: Any) -> str:
    """Why our own kernels cannot serve the model, or nothing."""
    text = model.config.get_text_config()
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    if model.dtype not in HALF:
        return f"kernels are for bfloat16 and float16, and the model is {model.dtype}"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if size & (size - 1) or not 16 <= size <= LARGEST_HEAD:
        return f"a head has {size} numbers; kernels are for powers of two from 16 to {LARGEST_HEAD}"
    if has := windows.told(text):
        return has
    if getattr(text, "attn_logit_softcapping", None):
        return "its attention scores are capped"
    return ""
