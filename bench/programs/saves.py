"""DeepSpeed ranks that save after every step, going on from the newest complete checkpoint; no pause between saves."""

import os
import shutil
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist

from allranks import checkpoint

deepspeed.ops.__compatible_ops__ = {}  # no compiler needed; see examples/digits
folder = Path(sys.argv[1])
model = torch.nn.Linear(1024, 4096)
config = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "Adam", "params": {"torch_adam": True}},
    "zero_optimization": {"stage": 2},
}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
found = checkpoint.newest(folder, start_over=True)
if found:
    engine.load_checkpoint(str(folder), tag=found.path.name)
rank = dist.get_rank()
done = os.open(folder.parent / f"done-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
os.write(done, f"resumed {engine.global_steps}\n".encode())
while True:
    loss = engine(torch.ones(1, 1024, device=engine.device)).sum()
    engine.backward(loss)
    engine.step()
    engine.save_checkpoint(str(folder))
    os.write(done, f"saved {engine.global_steps}\n".encode())
    if rank == 0:
        for old in folder.glob("global_step*"):
            if int(old.name[len("global_step") :]) < engine.global_steps - 1:
                shutil.rmtree(old)
