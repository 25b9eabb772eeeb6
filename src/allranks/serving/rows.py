"""A step that only decodes, on CPUs: each row meets its own keys alone.

transformers 5.24 computes a batch without flash attention as one sequence under one dense mask, every row against the
keys of all (continuous_batching/input_outputs.py, ``prepare_batch_tensors``): of 32 rows 31 parts of 32 are computed to
be thrown away, after Python has listed the place of every key anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from allranks.serving.batch import fill, go_on

Places = tuple[list[int], np.ndarray]
"""A request's pages, and where in the cache each of their tokens is."""


def fit(processor: Any) -> bool:
    """Whether the steps of this processor can be computed so."""
    cache, model = processor.cache, processor.config
    return (
        processor.model_device.type == "cpu"
        and model._attn_implementation == "sdpa"
        and list(cache.cache_allocators) == ["full_attention"]
    )


class Rows:
    """Takes the place of ``prepare_batch_tensors``, and leaves to it what is not only decoding."""

    def __init__(self, inputs: Any) -> None:
        self._inputs = inputs
        self._whole = partial(type(inputs).prepare_batch_tensors, inputs)
        self._arguments = partial(type(inputs).get_model_kwargs, inputs)
        (self._allocator,) = inputs.cache.cache_allocators.values()
        self._places: dict[str, Places] = {}
        self._mask: torch.Tensor | None = None
        inputs.prepare_batch_tensors, inputs.get_model_kwargs = self.prepare, self.arguments
        AttentionInterface.register("sdpa", attend)

    def prepare(
        self,
        requests_in_batch: Sequence[Any],
        logits_processors: Any,
        use_decode_fast_path: bool,
        num_q_tokens: int,
        max_kv_read: int,
        use_padding: bool,
    ) -> None:
        """As transformers' own: also moves each request on by the token that it is about to get."""
        inputs, states = self._inputs, [request.state for request in requests_in_batch]
        longest = 1 + max(state.position_offset for state in states)
        fits = len(states) * longest <= inputs.read_index_storage.shape[1]  # no more than the cache itself is
        if not fits or not all(one.has_new_token and one.query_length == 1 for one in requests_in_batch):
            self._mask = None
            self._whole(
                requests_in_batch, logits_processors, use_decode_fast_path, num_q_tokens, max_kv_read, use_padding
            )
            return
        names = [state.request_id for state in states]
        self._describe(list(requests_in_batch), names, longest)
        fill(inputs, states, names, [], len(states))
        self._lay_out(states, longest)
        go_on(inputs, requests_in_batch, logits_processors)

    def arguments(self, use_padding: bool = False) -> Any:
        """What the model is called with."""
        found = self._arguments(use_padding)
        if self._mask is not None:
            found["attention_mask"] = self._mask
        return found

    def _describe(self, requests: list[Any], names: list[str], longest: int) -> None:
        inputs, rows = self._inputs, len(requests)
        inputs.use_block_table = False
        inputs.num_q_tokens = inputs.num_request_in_batch = inputs.total_seqlen_q = rows
        inputs.max_kv_read = rows * longest
        inputs.true_read_sizes, inputs.true_write_sizes = [rows * longest], [rows]
        inputs.requests_in_batch = requests
        inputs.req_id_to_new_token_position = {name: row for row, name in enumerate(names)}
        inputs.max_length_q, inputs.max_length_k = 1, {"full_attention": longest}

    def _lay_out(self, states: list[Any], longest: int) -> None:
        """Where each row writes and reads, and the mask [rows, 1, 1, longest]; a shorter row reads one key again."""
        rows = len(states)
        read: np.ndarray = np.empty((rows, longest), np.int64)
        write: np.ndarray = np.empty(rows, np.int64)
        mask: np.ndarray = np.zeros((rows, longest), np.float32)
        self._places = {state.request_id: self._places_of(state.request_id) for state in states}
        for row, state in enumerate(states):
            places, length = self._places[state.request_id][1], state.position_offset + 1
            read[row, :length] = places[:length]
            read[row, length:] = places[0]
            mask[row, length:] = -np.inf
            write[row] = places[length - 1]
        self._inputs.read_index_storage[0, : read.size] = torch.from_numpy(read).view(-1)
        self._inputs.write_index_storage[0, :rows] = torch.from_numpy(write)
        self._mask = torch.from_numpy(mask).to(self._inputs.model_dtype).view(rows, 1, 1, longest)

    def _places_of(self, name: str) -> Places:
        pages, page = self._allocator.block_table[name], self._allocator.tokens_per_page
        known = self._places.get(name)
        if known is not None and known[0] == pages:
            return known
        starts = np.array(pages, np.int64) * self._allocator.block_physical_stride
        return pages[:], (starts[:, None] + np.arange(page)).reshape(-1)


def attend(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attention_mask: torch.Tensor | None, **named: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """``sdpa`` of transformers, and where the mask is one of ``Rows``, by row.

    Then query is [1, heads, rows, D], key and value are [1, kv heads, rows x longest, D] -> [1, rows, heads, D].
    """
    if attention_mask is None or len(attention_mask) == len(query):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **named)  # type: ignore[no-any-return]
    rows = len(attention_mask)
    by_row = [one[0].unflatten(1, (rows, -1)).transpose(0, 1) for one in (query, key, value)]
    out, _ = sdpa_attention_forward(module, *by_row, attention_mask, **named)
    return out.transpose(0, 1), None
