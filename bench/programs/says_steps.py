"""A loop of all-reduces that says the time of every step; with a number of steps as argument it ends after them."""

import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
last = int(sys.argv[1]) if len(sys.argv) > 1 else sys.maxsize
step = 0
while step < last:
    dist.all_reduce(torch.ones(8))
    print(f"step {step} at {time.time():.3f}", flush=True)
    step += 1
    time.sleep(0.1)
dist.destroy_process_group()
