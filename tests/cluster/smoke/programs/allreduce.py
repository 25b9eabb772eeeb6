"""One all-reduce over gloo, whoever has started this rank: RANK or OMPI_COMM_WORLD_RANK says which one it is."""

from __future__ import annotations

import os

import look
import torch
import torch.distributed as dist

env = os.environ
rank = int(env.get("RANK", env.get("OMPI_COMM_WORLD_RANK", "-1")))
size = int(env.get("WORLD_SIZE", env.get("OMPI_COMM_WORLD_SIZE", "-1")))
seen = look.around(f"rank {rank}")  # before torch adds to the environment
dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=size)
mine = torch.full((1024,), float(rank + 1))
dist.all_reduce(mine)
assert bool((mine == size * (size + 1) / 2).all()), mine[0]
# Only rank 0 speaks: mpirun mixes the output of several ranks in the middle of lines.
told = [None] * size if rank == 0 else None
dist.gather_object(seen, told)
if told is not None:
    print(f"ALLREDUCE of {size} ranks", flush=True)
    look.say(told[0])
    look.say(told[-1])
dist.destroy_process_group()
