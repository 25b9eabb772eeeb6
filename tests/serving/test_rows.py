"""Rows that decode on a CPU: what each gets is what it would get alone."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

PAGE, HEADS, KV_HEADS, SIZE = 4, 4, 2, 8
LENGTHS = (3, 9, 4)
"""Tokens that each row has; a step adds one: in its last page, at the end of one, at the beginning of the next."""


def prepared() -> tuple[Any, Any]:
    """Inputs of transformers over a cache in which three requests have pages, out of order."""
    import torch
    from transformers import LlamaConfig
    from transformers.generation import ContinuousBatchingConfig
    from transformers.generation.continuous_batching.cache import PagedAttentionCache
    from transformers.generation.continuous_batching.distributed import DistributedHelper
    from transformers.generation.continuous_batching.input_outputs import ContinuousBatchingIOs

    from allranks.serving.rows import Rows
    from allranks.serving.sampling import Sampling

    config = LlamaConfig(
        hidden_size=HEADS * SIZE, num_hidden_layers=1, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS
    )
    config._attn_implementation = "sdpa"
    settings = ContinuousBatchingConfig(
        page_size=PAGE, num_blocks=32, max_batch_tokens=32, max_requests_per_batch=8, max_memory_percent=0.1
    )
    cache = PagedAttentionCache(
        config, settings, torch.device("cpu"), DistributedHelper(None, None), torch.float32, True
    )
    sampling = Sampling(steady=False)
    inputs = ContinuousBatchingIOs(cache, config, settings, torch.device("cpu"), torch.float32, sampling)
    cache.cache_allocators["full_attention"].block_table |= {"a": [7], "b": [2, 11, 5], "c": [9, 3]}
    Rows(inputs)
    states = [
        SimpleNamespace(request_id=name, position_offset=length, tokens_to_process=[8], logit_processor_kwargs={})
        for name, length in zip("abc", LENGTHS, strict=True)
    ]
    batch = [SimpleNamespace(state=state, has_new_token=True, query_length=1) for state in states]
    inputs.prepare_batch_tensors(batch, sampling, False, len(states), sum(LENGTHS), False)
    assert [state.position_offset for state in states] == [length + 1 for length in LENGTHS]
    return inputs, cache.cache_allocators["full_attention"]


def test_each_row_attends_to_its_own_keys_and_to_no_others() -> None:
    import torch

    from allranks.serving.rows import attend

    inputs, allocator = prepared()
    given = inputs.get_model_kwargs()
    keys, values = allocator._kv_token_views[0]
    keys.fill_(float("nan"))  # what nobody has written may be anything
    values.fill_(float("nan"))
    draw = torch.Generator().manual_seed(0)
    wanted = []
    query = torch.randn(1, HEADS, len(LENGTHS), SIZE, generator=draw)
    new = torch.randn(2, len(LENGTHS), KV_HEADS, SIZE, generator=draw)
    for row, (name, length) in enumerate(zip("abc", LENGTHS, strict=True)):
        places = allocator.get_read_indices(name, length, 1)
        had = torch.randn(2, length, KV_HEADS, SIZE, generator=draw)
        keys[places[:-1]], values[places[:-1]] = had
        both = torch.cat([had, new[:, row : row + 1]], 1).transpose(1, 2).repeat_interleave(HEADS // KV_HEADS, 1)
        one = torch.nn.functional.scaled_dot_product_attention(query[0, :, row : row + 1], *both)
        wanted.append(one[:, 0])
    read = allocator.update(*new, 0, given["read_index"][0], given["write_index"][0])
    key, value = (one.transpose(0, 1).unsqueeze(0) for one in read)
    module: Any = SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS)
    found, _ = attend(module, query, key, value, given["attention_mask"])
    torch.testing.assert_close(found[0], torch.stack(wanted))


def test_a_step_in_which_a_prompt_begins_is_left_to_transformers() -> None:
    from allranks.serving.sampling import Sampling

    inputs, allocator = prepared()
    allocator.block_table["d"] = [12, 13]
    state = SimpleNamespace(request_id="d", position_offset=0, tokens_to_process=list(itertools.repeat(8, 5)))
    state.logit_processor_kwargs = {}
    batch = [SimpleNamespace(state=state, has_new_token=True, query_length=5)]
    inputs.prepare_batch_tensors(batch, Sampling(steady=False), False, 5, 0, False)
    assert inputs.get_model_kwargs()["attention_mask"].shape == (1, 1, 5, 5)
