"""transformers' continuous batching, all ranks in step: rank 0 schedules, tells, and hands out the tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation import ContinuousBatchingConfig
from transformers.generation.continuous_batching.continuous_api import BackgroundThreadStatus, ContinuousBatchingManager
from transformers.generation.continuous_batching.requests import RequestStatus

from allranks.serving import rows, sums
from allranks.serving.batch import Batches
from allranks.serving.graphs import Graphs
from allranks.serving.peers import Plans
from allranks.serving.sampling import Sampling

Outcome = tuple[str, list[int], bool, str]
"""A request's id, its new tokens, whether these are the last, and what broke it, if anything did."""


class Loop(ContinuousBatchingManager):  # type: ignore[misc]
    """The manager of transformers 5.24 with some things changed.

    The control plane is one-way; the ranks that follow never sleep; each request has its own sampling; tokens go to
    ``deliver`` as they come, all of a step at once; what only decodes is prepared by ``Batches`` on a GPU, where
    ``Graphs`` says what is captured, and by ``Rows`` on a CPU, where ``sums`` are made by the control plane's
    connections; and an error that ends the loop goes to ``broke``.
    ``how`` is what cut the model.
    """

    def __init__(
        self,
        model: Any,
        how: str,
        config: ContinuousBatchingConfig,
        plans: Plans,
        deliver: Callable[[list[Outcome]], None],
        broke: Callable[[BaseException], None],
    ) -> None:
        generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=1)
        super().__init__(model, generation, config)
        inner: Any = self.distributed_helper
        self.distributed_helper: Any = OneWay(inner, plans, how == "deepspeed")
        self.logit_processor = Sampling(steady=model.device.type == "cuda")
        self.output_router = Router(deliver)
        self.beats = self.current_batch = 0
        self._broke = broke
        if model.device.type == "cpu" and inner.tp_size > 1:
            sums.install(plans, inner.tp_size)
        self._graphs: Graphs | None = None
        if not self.is_tp_driver:
            self._wake_up_loop = NoWait()

    def _create_batch_processor(self) -> Any:
        processor = super()._create_batch_processor()
        if hasattr(processor.inputs_and_outputs, "io_pairs"):
            Batches(processor.inputs_and_outputs)
            self._graphs = self._graphs or Graphs(processor.model_runner, self.logit_processor)
        elif rows.fit(processor):
            rows.Rows(processor.inputs_and_outputs)
        return processor

    def warmup(self) -> None:
        super().warmup()
        if self._graphs:
            self._graphs.capture_prefills(self.model)

    def _generation_loop_body(self, batch_processor: Any, bootstrapping: bool) -> bool:
        self.beats += 1
        return bool(super()._generation_loop_body(batch_processor, bootstrapping))

    def _handle_critical_error(self, error: Exception, batch_processor: Any) -> None:
        self.background_thread_status.request_stop(
            BackgroundThreadStatus.HARD_STOP, self.distributed_helper.global_rank
        )
        self.background_thread_status.record_fatal_error(error)
        self._broke(error)

    @property
    def in_use(self) -> float:
        """The part of the cache that is taken, 0 to 1."""
        cache = getattr(self.batch_processor, "cache", None)
        if cache is None:
            return 0.0
        return float(1.0 - cache.pool.num_free_sectors / max(cache.num_sectors, 1))


class OneWay:
    """transformers' DistributedHelper, but for the control plane."""

    def __init__(self, inner: Any, plans: Plans, by_deepspeed: bool) -> None:
        self._inner, self._plans, self._by_deepspeed = inner, plans, by_deepspeed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def tp_all_reduce_state(
        self, payload_size: int, stop_status: int, pause_requested: int = 0
    ) -> tuple[int, int, int]:
        """Rank 0's word alone; nobody pauses the loop here."""
        return (*self._plans.state(payload_size, stop_status), 0)

    def tp_broadcast_object_from_rank_0(self, obj: Any) -> Any:
        """New requests and cancellations, as rank 0 has them; who follows tells nobody of their tokens."""
        news = self._plans.objects(obj)
        if not self._inner.is_tp_driver:
            for state in news[0]:
                state.streaming = False
        return news

    def are_kv_heads_tp_ed(self) -> bool:
        """Whether each rank's cache holds its own part of the key-value heads.

        DeepSpeed always cuts them; a plan of transformers' may put them together again for a norm (olmo2).
        """
        gathered = [how for name, how in self._inner.tp_plan.items() if name.endswith("k_proj") and "gather" in how]
        return self._by_deepspeed or (bool(self._inner.are_kv_heads_tp_ed()) and not gathered)


class NoWait:
    """Stands in for the event that wakes the loop: a rank that follows waits in ``Plans.state`` and nowhere else."""

    def wait(self, timeout: float | None = None) -> bool:
        return False

    def set(self) -> None: ...

    def clear(self) -> None: ...


class Router:
    """Takes what the loop has to say of requests, of one or of a whole step."""

    def __init__(self, deliver: Callable[[list[Outcome]], None]) -> None:
        self._deliver = deliver
        self._sent: dict[str, int] = {}

    def deliver(self, output: Any) -> None:
        self.deliver_batch([output])

    def deliver_batch(self, outputs: Sequence[Any]) -> None:
        """Pass on what is new since the last time."""
        self._deliver([self._new(output) for output in outputs])

    def fail_and_deliver(self, state: Any, error: BaseException) -> None:
        state.status, state.error = RequestStatus.FAILED, str(error)
        self.deliver(state.to_generation_output())

    def forget(self, name: str) -> None:
        """Of a request that was cancelled nothing comes any more."""
        self._sent.pop(name, None)

    def _new(self, output: Any) -> Outcome:
        sent = self._sent.get(output.request_id, 0)
        tokens, over = output.generated_tokens[sent:], output.is_finished()
        if over:
            self._sent.pop(output.request_id, None)
        else:
            self._sent[output.request_id] = sent + len(tokens)
        return output.request_id, tokens, over, output.error or ""


def config_for(
    model: Any, context: int, concurrent: int, share: int, chunk: int | None = None, level: int = 0
) -> ContinuousBatchingConfig:
    """Settings for requests of up to ``context`` tokens, ``concurrent`` at a time.

    ``share`` is how many ranks share this machine's memory where that is the CPU's; ``chunk`` how many tokens are
    computed in one step at most; ``level`` how much is compiled (GPU with a flash attention only).
    """
    cuda = model.device.type == "cuda"
    page = 256 if cuda else 32
    chunk = chunk or (8192 if cuda else 512)
    most = concurrent * -(-(context + 1) // page)
    blocks = max(min(most, _free(model.device, share) // _bytes_a_block(model, page)), -(-(context + 1) // page) + 1)
    if level:  # else every layer is compiled by itself, and those beyond the eighth not at all
        torch._dynamo.config.allow_unspec_int_on_nn_module = True
    fast = str(model.config._attn_implementation).startswith("flash")
    return ContinuousBatchingConfig(
        page_size=page,
        num_blocks=blocks,
        max_batch_tokens=max(chunk, concurrent),
        max_requests_per_batch=concurrent,
        max_blocks_per_request=-(-context // page) + 1 if fast else 0,
        use_cuda_graph=fast,
        use_async_batching=fast,
        default_compile_level=level if fast else 0,
        auto_switch_to_flash=False,
        seed=0,
        cpu_group_timeout=60.0,
    )


def _free(device: torch.device, share: int) -> int:
    """Bytes that the cache may take."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * 0.8)
    import psutil

    return int(psutil.virtual_memory().available * 0.5) // share


def _bytes_a_block(model: Any, page: int) -> int:
    text = model.config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    cut = model._device_mesh.size() if getattr(model, "_device_mesh", None) is not None else 1
    return int(2 * text.num_hidden_layers * page * max(heads // cut, 1) * size * model.dtype.itemsize)
