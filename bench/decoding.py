"""The serving loop alone, without HTTP: what a step takes on the host and on the GPU, and its kernels.

``python bench/decoding.py 8b --rows 1,8,64,128 --plain --profile``, random weights, JSON lines. ``--save FOLDER``
keeps the model, with a tokenizer, for ``allranks serve``; ``--load FOLDER`` takes one, on as many ranks as torchrun
started. ``--window`` makes layers with sliding windows, ``--temperature`` draws.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import torch

from allranks.serving import attention, layers, peers, shard
from allranks.serving.lockstep import Loop, Outcome, config_for

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    "small": {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 6, "num_attention_heads": 16},
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32},
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
}
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
TIMED = ("_update_tp_group_state", "schedule_batch", "prepare_batch_tensors", "get_model_kwargs", "compute_batch")
"""Of a step's work on the host, in its order; the rest is timed as a whole."""


def say(**found: Any) -> None:
    if RANK == 0:
        print(json.dumps(found), flush=True)


def make(shape: str, device: torch.device, window: int) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    small = shape == "tiny"
    config = AutoConfig.for_model(
        "mistral" if window else "llama", **SHAPES[shape], num_key_value_heads=2 if small else 8,
        vocab_size=1000 if small else 128256, tie_word_embeddings=shape == "1b", max_position_embeddings=16384,
        bos_token_id=1, eos_token_id=2, pad_token_id=0, **({"sliding_window": window} if window else {}),
    )  # fmt: skip
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    torch.set_default_dtype(before)
    return model


def save(model: Any, folder: str) -> None:
    """Keep the model, with a tokenizer that has a word for each number, so that every token is seen when it comes."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(model.config.vocab_size)}, "w3"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w3", eos_token="w2").save_pretrained(folder)
    model.save_pretrained(Path(folder))


def plain(model: Any, rows: int, prompt: int, new: int) -> None:
    """What ``generate`` of transformers takes, end to end, the second of two times."""
    tokens = torch.randint(3, model.config.vocab_size, (rows, prompt), device=model.device)
    settings = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    for _ in range(2):
        began = time.perf_counter()
        with torch.inference_mode():
            model.generate(tokens, attention_mask=torch.ones_like(tokens), **settings)
        torch.cuda.synchronize()
        took = time.perf_counter() - began
    say(what="generate", rows=rows, tokens_a_second=round(rows * new / took, 1), ms_a_token=round(took / new * 1e3, 2))


class Run:
    """The loop, and when it handed out what."""

    def __init__(self, model: Any, how: str, context: int, rows: int) -> None:
        plans = peers.Plans(peers.connect(os.environ.get("MASTER_ADDR", ""), WORLD), RANK)
        began = time.perf_counter()
        self.told: list[float] = []
        self.over = threading.Semaphore(0)
        self.sampling: dict[str, Any] = {}
        self.host: dict[str, list[float]] = {}
        self.loop = Loop(model, how, config_for(model, context, rows, 1), plans, self._deliver, self._broke)
        with torch.inference_mode():
            self.loop.warmup()
            self.loop.start()
        if RANK:
            assert self.loop._generation_thread is not None
            self.loop._generation_thread.join()
            os._exit(0)
        self.ask(1, 8, 4, [])
        say(what="warm-up", seconds=round(time.perf_counter() - began, 1))
        processor = self.loop.batch_processor
        for owner in (processor, processor.scheduler, processor.inputs_and_outputs, processor.model_runner):
            for name in TIMED:
                if hasattr(owner, name):
                    self._time(owner, name)
        self._time(processor, "update_batch")
        self._time(processor.inputs_and_outputs, "prepare_batch_update")  # waits for the GPU: no work of the host's

    def _broke(self, error: BaseException) -> None:
        print("the loop broke:", repr(error), flush=True)
        os._exit(1)

    def _deliver(self, outcomes: list[Outcome]) -> None:
        self.told.append(time.perf_counter())
        for _ in range(sum(over for _name, _tokens, over, _error in outcomes)):
            self.over.release()

    def _time(self, owner: Any, name: str) -> None:
        call, taken = getattr(owner, name), self.host.setdefault(name, [])

        def timed(*words: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*words, **named)
            finally:
                taken.append(time.perf_counter() - began)

        setattr(owner, name, timed)

    def ask(self, rows: int, prompt: int, new: int, firsts: list[float]) -> None:
        """Ask for ``rows`` answers at a time; ``firsts`` gets the wait for the first tokens."""
        vocabulary = self.loop.model.config.vocab_size
        prompts = torch.randint(3, vocabulary - 1, (rows, prompt)).tolist()
        self.told.clear()
        for taken in self.host.values():
            taken.clear()
        began = time.perf_counter()
        for number, tokens in enumerate(prompts):
            name = f"{began}-{number}"
            self.loop.add_request(
                tokens, request_id=name, max_new_tokens=new, streaming=True, eos_token_id=-1, **self.sampling
            )
        for _ in prompts:
            assert self.over.acquire(timeout=100), "no answer"
        firsts.append(self.told[0] - began)

    def measure(self, rows: int, prompt: int, new: int) -> None:
        firsts: list[float] = []
        for _ in range(3):
            self.ask(rows, prompt, new, firsts)
        steps = [b - a for a, b in zip(self.told[4:], self.told[5:], strict=False)]
        step = statistics.median(steps)
        host = {
            name: round(statistics.median(taken[-len(steps) :]) * 1e6) for name, taken in self.host.items() if taken
        }
        waits = host.pop("prepare_batch_update", 0)
        host["update_batch"] = host.get("update_batch", 0) - waits
        say(
            what="loop", rows=rows, ms_a_step=round(step * 1e3, 3), tokens_a_second=round(rows / step),
            host_ms=round(sum(host.values()) / 1e3, 3), waits_ms=round(waits / 1e3, 3), host_us=host,
            first_ms=[round(first * 1e3, 1) for first in firsts],
        )  # fmt: skip

    def replay(self, rows: int, profile: bool) -> None:
        """The captured step of ``rows`` by itself; only on one rank, as the others do not replay along."""
        inputs = self.loop.batch_processor.inputs_and_outputs
        if not hasattr(inputs, "io_pairs"):
            return
        self.ask(rows, 32, 40, [])  # its last inputs are for this graph
        buffers = inputs.io_pairs[0].device_io
        graph = buffers.graphs.get_graph((rows, *self.loop.logit_processor.variant))
        if graph is None:
            return
        time.sleep(0.3)  # the loop's last step has ended
        for _ in range(3):
            graph.replay()
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        ends[0].record()
        for _ in range(30):
            graph.replay()
        ends[1].record()
        torch.cuda.synchronize()
        say(what="graph", rows=rows, ms=round(ends[0].elapsed_time(ends[1]) / 30, 3))
        if profile:
            self._profile(graph, rows)

    def _profile(self, graph: Any, rows: int) -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            for _ in range(5):
                graph.replay()
            torch.cuda.synchronize()
        kernels = sorted(seen.key_averages(), key=lambda one: -one.self_device_time_total)
        listed = [[one.key[:60], round(one.self_device_time_total / 5e3, 3), one.count // 5] for one in kernels[:14]]
        total = sum(one.self_device_time_total for one in kernels) / 5e3
        say(what="kernels", rows=rows, count=sum(one.count for one in kernels) // 5, ms=round(total, 3), largest=listed)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--rows", default="1,8,64,128")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--unfused", action="store_true")
    parser.add_argument("--window", type=int, default=0)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--save", default="")
    parser.add_argument("--load", default="")
    parser.add_argument("--shard", default="transformers")
    options = parser.parse_args()
    rows = [int(number) for number in options.rows.split(",")]
    device = shard.device_of_rank()
    shard.join(device, WORLD)
    how = options.shard if WORLD > 1 else "whole"
    model = (
        shard.load(options.load, how, torch.bfloat16, device, options.context)
        if options.load
        else make(options.shape, device, options.window)
    )
    if options.save:
        save(model, options.save)
    for number in rows if options.plain else []:
        plain(model, number, options.prompt, options.new)
    attends = attention.choose(model)
    whose = "unfused" if options.unfused else layers.choose(model)
    say(what="setting", shape=options.shape, card=torch.cuda.get_device_name(), ranks=WORLD, how=how,
        attention=attends, layers=whose)  # fmt: skip
    run = Run(model, how, options.context, max(rows))
    if options.temperature:
        run.sampling = {"temperature": options.temperature, "seed": 1}
    for number in rows:
        run.measure(number, options.prompt, options.new)
        if WORLD == 1:
            run.replay(number, options.profile)
    run.loop.stop(block=True, timeout=10)
    os._exit(0)


if __name__ == "__main__":
    main()
