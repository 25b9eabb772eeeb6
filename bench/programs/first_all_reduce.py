"""Prints the time at which this rank has finished its first all-reduce; gloo, or NCCL where there are GPUs."""

import os
import sys
import time

import torch
import torch.distributed as dist

if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
else:
    device = torch.device("cpu")
    dist.init_process_group("gloo")
total = torch.ones(1, device=device)
dist.all_reduce(total)
assert total.item() == dist.get_world_size()
os.write(1, f"FIRST {time.time():.4f}\n".encode())  # one write: under torchrun the ranks share a pipe
if sys.argv[1:] == ["stay"]:
    time.sleep(600)
dist.destroy_process_group()
