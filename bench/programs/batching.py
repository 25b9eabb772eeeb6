"""Drives transformers' continuous batching as it comes, in process: for each line on rank 0's stdin a round.

``batching.py MODEL CONTEXT CONCURRENT``; a line is ``{"requests": [[prompt, ...], ...], "new": N}``, and what comes
back is ``{"seconds": ..., "tokens": ...}``: as many requests at a time as there are clients, the next when one is done.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from transformers import GenerationConfig

from allranks.serving import shard
from allranks.serving.lockstep import config_for


def main() -> None:
    folder, context, concurrent = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    world = int(os.environ["WORLD_SIZE"])
    shard.join(torch.device("cpu"), world)
    model = shard.load(folder, "transformers", torch.float32, torch.device("cpu"))
    settings = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=1)
    config = config_for(model, context, concurrent, world)
    manager = model.init_continuous_batching(generation_config=settings, continuous_batching_config=config)
    with torch.inference_mode():
        manager.start()
    if dist.get_rank() == 0:
        print("READY", flush=True)
        for line in sys.stdin:
            print(json.dumps(round_of(manager, **json.loads(line), concurrent=concurrent)), flush=True)
    else:
        sys.stdin.read()
    os._exit(0)


def round_of(manager: Any, requests: list[list[int]], new: int, concurrent: int) -> dict[str, float]:
    began, tokens, waiting = time.perf_counter(), 0, list(requests)
    for _ in range(min(concurrent, len(waiting))):
        manager.add_request(waiting.pop(), max_new_tokens=new)
    for _ in requests:
        found = manager.get_result(timeout=300)
        if found is None or found.error:
            raise SystemExit(f"no answer: {found and found.error}")
        tokens += len(found.generated_tokens)
        if waiting:
            manager.add_request(waiting.pop(), max_new_tokens=new)
    return {"seconds": time.perf_counter() - began, "tokens": tokens}


if __name__ == "__main__":
    main()
