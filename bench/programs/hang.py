"""Trains until rank 1 misbehaves in the way of this attempt, after it wrote the time into a file.

Arguments: the file, and the ways of the attempts in turn, the last one for all that follow. "none" ends well.
"""

import ctypes
import os
import re
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist


def misbehave(way: str) -> None:
    """Never return, but in "mismatch", which waits in another collective than the others."""
    with open(sys.argv[1], "a") as file:
        file.write(f"{time.time()}\n")
    if way == "stop":
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # os.kill would stop us some lines further on
    elif way == "spin":
        while True:
            pass
    elif way == "gil":
        while True:
            ctypes.PyDLL(None).sleep(1000)
    elif way == "regex":
        re.match(r"(a+)+$", "a" * 60 + "b")
    elif way == "skip":
        threading.Event().wait()
    elif way == "mismatch":
        dist.all_gather([torch.empty(100) for _ in range(dist.get_world_size())], torch.ones(100))


ways = sys.argv[2].split(",")
way = ways[min(int(os.environ["ALLRANKS_ATTEMPT"]), len(ways) - 1)]
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
else:
    device = torch.device("cpu")
    dist.init_process_group("gloo")
for step in range(20):
    if step == 10 and way != "none" and dist.get_rank() == 1:
        misbehave(way)
    total = torch.ones(100, device=device)
    dist.all_reduce(total)
    total.sum().item()  # waits, as a loop that prints its loss does
dist.destroy_process_group()
