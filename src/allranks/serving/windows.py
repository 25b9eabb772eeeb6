"""Sliding windows: transformers' batches have no fast way for them, and a short context has no need of them."""

from __future__ import annotations

from typing import Any

ONLY_A_MASK = ("mistral", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe", "starcoder2")
"""Architectures in which a layer with a window differs from one without by nothing else, as rotation or sinks."""


def lift(config: Any, context: int) -> None:
    """Take the windows from a model's configuration where no text, of ``context`` tokens at most, outgrows them."""
    size = getattr(config, "sliding_window", None)
    if size and context <= size and config.model_type in ONLY_A_MASK:
        config.sliding_window = None
        if getattr(config, "layer_types", None):
            config.layer_types = ["full_attention"] * len(config.layer_types)


def told(config: Any) -> str:
    """What to say of a model that has some, and the way out where there is one; else nothing."""
    size, kinds = getattr(config, "sliding_window", None), set(getattr(config, "layer_types", None) or ())
    if not (kinds - {"full_attention"} if kinds else size):
        return ""
    way_out = f"; with limits.context of at most {size} it is without" if config.model_type in ONLY_A_MASK else ""
    return f"it has sliding windows{way_out}"
