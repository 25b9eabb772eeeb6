"""Which token comes next, for each row of a batch by its own request's temperature, top_k, top_p and seed.

Chance is a function of seed and position alone (the Gumbel-max trick on hashed noise): every rank draws the same token
without telling the others, and a request with a seed gets the same answer whatever runs beside it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import torch

ROWS = 5
"""temperature, top_p (both float32 bits), top_k, seed, position"""
LOW = 0xFFFFFFFF
FIELDS = {"temperature": float, "top_p": float, "top_k": int, "seed": int}


class Sampling:
    """Takes the place of transformers' list of logits processors in continuous batching (cb_logits_processors.py).

    ``draws`` and ``filters`` say whether any row of the batch does; a compiled or captured step holds for one of these
    ``variant``s. ``steady``: batches that draw and those that do not are one variant, where a variant is dear.
    """

    def __init__(self, steady: bool) -> None:
        self.tensors_required = ROWS
        self.do_processing = True
        self.logits_processor: list[Any] = []
        self._steady = steady
        self.draws, self.filters = steady, False

    @property
    def variant(self) -> tuple[bool, bool]:
        """What a step that is captured now will hold for."""
        return self.draws, self.filters

    def check_kwargs(self, given: Mapping[str, Any]) -> None:
        """Refuse what no request of ours has."""
        wrong = {name for name, value in given.items() if not isinstance(value, FIELDS.get(name, ()))}
        if wrong:
            raise ValueError(f"unknown or mistyped: {', '.join(sorted(wrong))}; allowed: {', '.join(FIELDS)}")
        large = [name for name, value in given.items() if not abs(value) < 2**31]  # one of these would end the loop
        if large:
            raise ValueError(f"too large, or no number: {', '.join(large)}; allowed is less than 2^31")

    def fill_defaults(self, storage: torch.Tensor) -> None:
        """Rows that nobody uses are greedy."""
        storage[:ROWS].zero_()

    def prepare_tensor_args(self, requests_in_batch: Sequence[Any], arg_storage: torch.Tensor) -> torch.Tensor:
        """Write the batch's settings into ``arg_storage``, int32 [ROWS or more, columns]: a column a new token."""
        states = [row.state for row in requests_in_batch if row.has_new_token]
        asked = [state.logit_processor_kwargs for state in states]
        drawing = any(one.get("temperature", 0.0) > 0 for one in asked)
        self.draws = drawing or self._steady
        self.filters = drawing and any(one.get("top_k", 0) > 0 or one.get("top_p", 1.0) < 1 for one in asked)
        if not drawing:
            arg_storage[0].zero_()
        else:
            floats = [[one.get("temperature", 0.0) for one in asked], [one.get("top_p", 1.0) for one in asked]]
            whole = [
                [one.get("top_k", 0) for one in asked],
                [one.get("seed", 0) & 0x7FFFFFFF for one in asked],
                [state.position_offset for state in states],
            ]
            filled = torch.cat(
                [torch.tensor(floats, dtype=torch.float32).view(torch.int32), torch.tensor(whole, dtype=torch.int32)]
            )
            arg_storage[:ROWS, : len(asked)] = filled.to(arg_storage.device)
        return arg_storage

    def __call__(self, _: torch.Tensor, scores: torch.Tensor, settings: torch.Tensor) -> torch.Tensor:
        """Scores [rows, vocabulary] of which the largest is the next token."""
        if not self.draws:
            return scores
        if scores.is_cuda and not self.filters and importlib.util.find_spec("triton"):
            from allranks.serving import kernels

            return kernels.drawn(scores, settings)
        count = scores.size(0)
        temperature, top_p = settings[:2, :count].contiguous().view(torch.float32)
        top_k, seed, position = settings[2:ROWS, :count].long()
        heated = scores / temperature.clamp(min=1e-5).unsqueeze(-1)
        if self.filters:
            heated = likeliest(heated, top_k, top_p)
        drawn = heated + noise(seed, position, scores.size(-1))
        return torch.where((temperature > 0).unsqueeze(-1), drawn, scores)


def likeliest(scores: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Take out all but the ``top_k`` likeliest (0: all), and of those all but the fewest that make up ``top_p``."""
    ordered, places = scores.sort(dim=-1, descending=True)
    rank = torch.arange(scores.size(-1), device=scores.device)
    out = (rank >= top_k.unsqueeze(-1)) & (top_k > 0).unsqueeze(-1)
    ordered = ordered.masked_fill(out, float("-inf"))
    chance = ordered.softmax(dim=-1)
    out |= chance.cumsum(dim=-1) - chance >= top_p.unsqueeze(-1)  # the first one always stays
    return scores.masked_fill(out.scatter(-1, places, out), float("-inf"))


def noise(seed: torch.Tensor, position: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Gumbel noise [rows, vocabulary], float32, for int64 seeds and positions of each row."""
    row = _mixed(seed ^ _mixed(position + 0x9E3779B9))
    token = torch.arange(vocabulary, device=seed.device) * 0x9E3779B9
    bits = _mixed((row.unsqueeze(-1) + token) & LOW)
    # 23 bits and a half: never 0 and never 1 in float32.
    uniform = ((bits >> 9).float() + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """A 32-bit hash in int64 (Chris Wellons' lowbias32); products wrap, and only their low half is kept."""
    x = x & LOW
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & LOW
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & LOW
    return x ^ (x >> 16)
