"""Steps that only decode, prepared by us and by transformers: what the GPU gets to see must be the same."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

MOST, PAGE, TABLE = 8, 32, 6


def inputs_of(cache: Any, config: Any, settings: Any) -> tuple[Any, Any]:
    """Asynchronous inputs without their GPU half."""
    import torch
    from transformers.generation.continuous_batching.input_outputs import (
        ContinuousBatchingAsyncIOs,
        ContinuousBatchingIOs,
    )

    from allranks.serving.sampling import Sampling

    inputs = ContinuousBatchingAsyncIOs.__new__(ContinuousBatchingAsyncIOs)
    inputs.current_pair, inputs.max_batch_tokens = 0, cache.max_batch_tokens
    sampling = Sampling(steady=True)
    arguments = (cache, config, settings, torch.device("cpu"), torch.float32, sampling)
    inputs.io_pairs = [SimpleNamespace(host_io=ContinuousBatchingIOs(*arguments)) for _ in range(2)]
    return inputs, sampling


class Twin:
    """A cache and inputs of its own: every step is prepared for both twins, and they are compared."""

    def __init__(self, ours: bool) -> None:
        import torch
        from transformers import LlamaConfig
        from transformers.generation import ContinuousBatchingConfig
        from transformers.generation.continuous_batching.cache import PagedAttentionCache
        from transformers.generation.continuous_batching.distributed import DistributedHelper

        from allranks.serving.batch import Batches

        config = LlamaConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2)
        config._attn_implementation = "flash_attention_2"  # no dense mask
        settings = ContinuousBatchingConfig(
            page_size=PAGE,
            num_blocks=64,
            max_batch_tokens=256,
            max_requests_per_batch=MOST,
            max_blocks_per_request=TABLE,
            max_memory_percent=0.1,
        )
        helper = DistributedHelper(None, None)
        self.cache = PagedAttentionCache(config, settings, torch.device("cpu"), helper, torch.float32, True)
        self.cache.max_blocks_per_request = TABLE
        self.inputs, self.sampling = inputs_of(self.cache, config, settings)
        self.states: dict[str, Any] = {}
        if ours:
            Batches(self.inputs)

    def step(self, names: list[str]) -> dict[str, list[int]]:
        """Prepare a step for these requests, new ones with their prompts; what of it a GPU would read."""
        from transformers.generation.continuous_batching.requests import FutureRequestState, RequestState

        decodes, rows = True, []
        for name in names:
            if name not in self.states:
                state = self.states[name] = RequestState(name, [7] * (5 * int(name) % 40 + 1))
                state.tokens_to_process, decodes = list(state.initial_tokens), False
            state = self.states[name]
            length = len(state.tokens_to_process)
            assert self.cache.can_store_request_tokens(state, length)
            rows.append(FutureRequestState(state, True, {}, length))
        padded = 1 << (len(rows) - 1).bit_length() if decodes else 256
        inputs = self.inputs
        inputs.prepare_batch_tensors(rows, self.sampling, decodes, padded, 0, True)
        host = inputs.io_pairs[inputs.current_pair].host_io
        seen = {f"row {number}": host._bulk_input_tensor[number, :padded].tolist() for number in (0, 1, 3, 6)}
        ends = padded if decodes else MOST
        seen |= {f"ends {number}": host._bulk_input_tensor[number, : min(ends, MOST) + 1].tolist() for number in (2, 4)}
        seen["offsets"] = [self.states[name].position_offset for name in names]
        if decodes:
            pages = [len(self.cache.cache_allocators["full_attention"].block_table[name]) for name in names]
            for row, used in enumerate(pages):
                seen[f"table {row}"] = host.block_table[0, row, :used].tolist()
            seen["rows"] = [host.num_request_in_batch, host.num_q_tokens, host.total_seqlen_q, *pages]
        inputs.swap_io_pairs()
        return seen

    def end(self, name: str) -> None:
        self.cache.free_blocks(name)


def test_both_prepare_the_same_while_requests_come_grow_and_go() -> None:
    chance, twins = random.Random(3), (Twin(ours=False), Twin(ours=True))
    running: list[str] = []
    for step in range(150):
        if len(running) < MOST and chance.random() < 0.2:
            running.append(str(step))
        seen, wanted = (twin.step(running) for twin in reversed(twins)) if running else (0, 0)
        assert seen == wanted, step
        for name in [name for name in running if chance.random() < 0.02 or twins[0].states[name].position_offset > 180]:
            running.remove(name)
            for twin in twins:
                twin.end(name)
