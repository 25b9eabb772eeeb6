"""A training loop that resumes from its checkpoint and writes down the time of every step: STEPS.rank in a folder."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

folder, every, pause = Path(sys.argv[1]), 5, 0.05
rank = int(os.environ["RANK"])
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
else:
    device = torch.device("cpu")
    dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(64, 64).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
checkpoint, step = folder / "checkpoint.pt", 0
if checkpoint.exists():
    state = torch.load(checkpoint, map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    step = state["step"]
with open(folder / f"steps.{rank}", "a", buffering=1) as steps:
    while True:
        optimizer.zero_grad()
        model(torch.ones(8, 64, device=device)).square().sum().backward()
        optimizer.step()
        float(next(model.parameters()).sum())
        step += 1
        if step % every == 0 and rank == 0:
            torch.save({"model": model.state_dict(), "step": step}, folder / "checkpoint.tmp")
            (folder / "checkpoint.tmp").replace(checkpoint)
        steps.write(f"{time.time():.4f} {os.getpid()} {step}\n")
        time.sleep(pause)
