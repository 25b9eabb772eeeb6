"""The host's part of a step that only decodes: a few whole rows of integers, of which little changes from step to step.

transformers 5.24 builds each step's tensors anew, request by request (continuous_batching/input_outputs.py,
``prepare_batch_tensors``): 1 to 5 ms, more than a small model's step takes on the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from transformers.generation.continuous_batching.requests import TMP_TOKEN_ID

INPUT, POSITION, ENDS_Q, LOGITS, ENDS_K, _SLIDING, CARRIED = range(7)
"""Rows of the tensor that holds a step's small inputs (``_setup_static_tensors``)."""


class Batches:
    """Takes the place of ``prepare_batch_tensors`` of asynchronous inputs, and leaves to it what is not only decoding.

    A row of the table of pages is written when it differs from what was written there last.
    """

    def __init__(self, inputs: Any) -> None:
        self._inputs, self._whole = inputs, partial(type(inputs).prepare_batch_tensors, inputs)
        self._tables: list[list[list[int]]] = [[] for _ in inputs.io_pairs]
        inputs.prepare_batch_tensors = self.prepare

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
        inputs, at = self._inputs, self._inputs.current_pair
        buffers = inputs.io_pairs[at].host_io
        decodes = use_decode_fast_path and buffers.block_table.numel() > 0
        if not decodes or not all(request.has_new_token for request in requests_in_batch):
            self._tables[at] = []
            self._whole(
                requests_in_batch, logits_processors, use_decode_fast_path, num_q_tokens, max_kv_read, use_padding
            )
            return
        before = inputs.io_pairs[1 - at].host_io.req_id_to_new_token_position
        states = [request.state for request in requests_in_batch]
        names = [state.request_id for state in states]
        _describe(buffers, list(requests_in_batch), names, num_q_tokens)
        fill(buffers, states, names, list(before), num_q_tokens)
        self._fill_table(buffers, names, at)
        go_on(buffers, requests_in_batch, logits_processors)

    def _fill_table(self, buffers: Any, names: list[str], at: int) -> None:
        (allocator,) = buffers.cache.cache_allocators.values()  # with windows there is no decoding of this kind
        stride = allocator.block_physical_stride // allocator.tokens_per_page
        table, written = buffers.block_table[0].numpy(), self._tables[at]
        table[len(names) : len(written)] = -1
        del written[len(names) :]
        for row, name in enumerate(names):
            pages = allocator.block_table[name]
            if row == len(written):
                written.append([])
            if written[row] != pages:
                table[row, : len(pages)] = [page * stride for page in pages]
                written[row] = pages[:]


def _describe(buffers: Any, requests: list[Any], names: list[str], tokens: int) -> None:
    """What is known of a step beside its tensors."""
    rows, kinds = len(requests), len(buffers.cache.cache_allocators)
    buffers.use_block_table = True
    buffers.num_q_tokens, buffers.max_kv_read, buffers.num_request_in_batch = tokens, 0, rows
    buffers.true_read_sizes, buffers.true_write_sizes = [0] * kinds, [0] * kinds
    buffers.requests_in_batch = requests
    buffers.req_id_to_new_token_position = {name: row for row, name in enumerate(names)}
    buffers.total_seqlen_q, buffers.max_length_q = rows, 1


def go_on(buffers: Any, requests: Sequence[Any], logits_processors: Any) -> None:
    """Move each request on by the token that it is about to get, once its place in the batch is written."""
    for request in requests:
        request.state.position_offset += 1
        request.state.tokens_to_process = [TMP_TOKEN_ID]
    arguments = buffers._bulk_input_tensor[buffers.static_inputs :]
    logits_processors.prepare_tensor_args(requests_in_batch=requests, arg_storage=arguments)


def fill(buffers: Any, states: list[Any], names: list[str], before: list[str], tokens: int) -> None:
    """Write a token, a position and a length for each request; the rows that pad the batch have length 0."""
    rows, small = len(states), buffers._bulk_input_tensor.numpy()
    positions = np.array([state.position_offset for state in states], np.int32)
    small[INPUT, :rows] = [state.tokens_to_process[0] for state in states]
    small[POSITION, :rows] = positions
    small[LOGITS, :rows] = small[ENDS_Q, :rows] = np.arange(rows)
    small[ENDS_Q, rows : tokens + 1] = rows
    small[ENDS_K, 0] = 0
    small[ENDS_K, 1 : rows + 1] = np.cumsum(positions + 1)
    small[ENDS_K, rows + 1 : tokens + 1] = small[ENDS_K, rows]
    for padded in (INPUT, POSITION, LOGITS):
        small[padded, rows:tokens] = 0
    place = {name: row for row, name in enumerate(before)}
    small[CARRIED, :rows] = [place.get(name, -1) for name in names]
    small[CARRIED, rows:tokens] = -1
