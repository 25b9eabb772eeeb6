"""Whose layers a model gets: ours, fused, on a GPU where they fit it."""

from __future__ import annotations

import importlib.util
from typing import Any

FUSED = "fused"


def choose(model: Any) -> str:
    """Fuse the model's layers where that can be done; says whose they are, with the reason where that is slow."""
    if model.device.type != "cuda":
        return "transformers'"
    if importlib.util.find_spec("triton") is None:
        return "transformers', unfused: triton is not installed"
    from allranks.serving import fused

    if why_not := fused.unfit(model):
        return f"transformers', unfused: {why_not}"
    fused.fuse(model)
    return FUSED
