"""Which steps run as CUDA graphs: those that only decode, and short prefills that meet an idle service.

transformers 5.24 would capture whatever comes, in the midst of serving and by shape alone
(continuous_batching/model_runner.py, input_outputs.py).
"""

from __future__ import annotations

from typing import Any

from allranks.serving.sampling import Sampling

PREFILLS = (64, 128, 256, 512, 1024)
"""Tokens, padded, of the prefills that are captured: launched one by one, a short one's kernels wait for the host."""


class Graphs:
    """Decides for a runner with asynchronous inputs whether a step is captured, replayed or just run."""

    def __init__(self, runner: Any, sampling: Sampling) -> None:
        self._runner, self._inputs = runner, runner.inputs_and_outputs
        self._choose, self._capturing = runner._get_forward_fn, False
        runner._get_forward_fn = self.choose
        for pair in self._inputs.io_pairs:
            _part(pair.device_io, sampling)

    def choose(self, use_block_table: bool) -> tuple[Any, bool]:
        """What computes the step, and whether as a graph: prefills only where there is one, or one is wanted now."""
        forward, graph = self._choose(use_block_table)
        return forward, graph and (use_block_table or self._capturing or self._inputs.get_graph() is not None)

    def capture_prefills(self, model: Any) -> None:
        """Capture what transformers' warm-up does not, for both sets of inputs; before the loop starts."""
        cache = self._runner.cache
        self._capturing = True
        for _ in self._inputs.io_pairs:
            for tokens in PREFILLS:
                if tokens <= cache.max_batch_tokens:
                    self._runner.run_one_warmup(model, tokens, 0)
            self._inputs.swap_io_pairs()
        self._capturing = False
        cache.reset()


def _part(buffers: Any, sampling: Sampling) -> None:
    """Keep graphs of steps that sample otherwise apart."""
    by_shape = buffers._get_graph_key
    buffers._get_graph_key = lambda: (*by_shape(), *sampling.variant)
