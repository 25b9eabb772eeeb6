"""What every rank of test_exact runs: each model, cut, against the whole one and ``generate``. Prints a line a model.

``python -m tests.serving.exact FOLDER REQUESTS CONCURRENT HOW/ARCHITECTURE ...``
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, GenerationConfig

from allranks.serving import attention, layers, peers, shard
from allranks.serving.lockstep import Loop, Outcome, config_for

NEW, CONTEXT = 12, 128
LENGTHS = (5, 17, 40, 9, 64, 33)


def main() -> None:
    folder, count, concurrent, wanted = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    world = int(os.environ["WORLD_SIZE"])
    device = shard.device_of_rank()
    shard.join(device, world)
    plans = peers.Plans(peers.connect(os.environ["MASTER_ADDR"], world), dist.get_rank())
    for name in wanted:
        how, _, architecture = name.partition("/")
        check(str(folder / architecture), how, name, plans, device, count, concurrent)
    sys.stdout.flush()
    os._exit(0)


def check(
    path: str, how: str, name: str, plans: peers.Plans, device: torch.device, count: int, concurrent: int
) -> None:
    """``count`` requests, each coming into the midst of those before it, ``concurrent`` of them at a time."""
    whole = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).to(device).eval()
    random = torch.Generator().manual_seed(1)
    lengths = list(itertools.islice(itertools.cycle(LENGTHS), count))
    prompts = [torch.randint(3, whole.config.vocab_size, (length,), generator=random).tolist() for length in lengths]
    wanted = [alone(whole, prompt) for prompt in prompts] if dist.get_rank() == 0 else []
    model = shard.load(path, how, torch.float32, device, CONTEXT)
    attention.choose(model)
    whose = layers.choose(model)
    said: dict[str, list[int]] = {}
    over = threading.Semaphore(0)
    errors: list[str] = []

    def deliver(outcomes: list[Outcome]) -> None:
        for request, tokens, last, error in outcomes:
            said.setdefault(request, []).extend(tokens)
            errors.extend([error] if error else [])
            if last:
                over.release()

    def broke(error: BaseException) -> None:
        errors.append(repr(error))
        over.release(len(prompts))

    loop = Loop(model, how, config_for(model, CONTEXT, concurrent, dist.get_world_size()), plans, deliver, broke)
    with torch.inference_mode():
        loop.start()
    if dist.get_rank() == 0:
        for number, prompt in enumerate(prompts):
            loop.add_request(prompt, request_id=str(number), max_new_tokens=NEW, streaming=True, eos_token_id=-1)
            if over.acquire(timeout=0.02):  # the next one comes into the midst of these
                over.release()
        assert all(over.acquire(timeout=60) for _ in prompts), f"{name}: no answer"
        right = [said.get(str(number)) == tokens for number, tokens in enumerate(wanted)]
        print(
            f"RESULT {name} {sum(right)}/{len(right)} {errors[:1]}"
            + (f" layers: {whose}" if device.type == "cuda" else ""),
            flush=True,
        )
        loop.stop(block=True, timeout=10)
    else:
        assert loop._generation_thread is not None
        loop._generation_thread.join(60)


def alone(model: torch.nn.Module, prompt: list[int]) -> list[int]:
    model.generation_config.eos_token_id = None  # type: ignore[union-attr, unused-ignore]
    settings = GenerationConfig(max_new_tokens=NEW, do_sample=False, pad_token_id=0)
    tokens = torch.tensor([prompt], device=model.device)
    with torch.inference_mode():
        found = model.generate(tokens, attention_mask=torch.ones_like(tokens), generation_config=settings)  # type: ignore[operator, unused-ignore]
    new: list[int] = found[0, len(prompt) :].tolist()
    return new


if __name__ == "__main__":
    main()
