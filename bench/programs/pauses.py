"""Uneven ranks, and checkpoints by rank 0 alone in which the others wait: slow, but no hang.

Arguments: for how many seconds, how long a checkpoint takes, how much work lies between two.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

seconds, checkpoint, between = map(float, sys.argv[1:])
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
else:
    device = torch.device("cpu")
    dist.init_process_group("gloo")
rank, began, steps = dist.get_rank(), time.monotonic(), 0
over = torch.zeros(1, device=device)
while not over.item():
    until = time.monotonic() + between
    busy = torch.ones(1, device=device)
    while busy.item():
        time.sleep(0.02 * (1 + rank % 3))
        busy.fill_(float(time.monotonic() < until))
        dist.broadcast(busy, 0)
        steps += 1
    if rank == 0:
        time.sleep(checkpoint)
    over.fill_(float(time.monotonic() - began > seconds))
    dist.broadcast(over, 0)
if rank == 0:
    print(f"{steps} steps in {time.monotonic() - began:.0f} s")
dist.destroy_process_group()
