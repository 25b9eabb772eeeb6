"""Groups of nodes measured against each other, round after round.

Each group of a round lives in forked children with a process group of its own: one that fails or hangs says so of
itself alone. The parents only talk to rank 0's store, which needs no NCCL.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from datetime import timedelta
from typing import Any, Dict, List, Optional, Tuple

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # CUDA must not be begun before the fork

import torch.distributed as dist

from allranks.bench.collectives import ELEMENT, busbw
from allranks.bench.ranks.device import find_device
from allranks.bench.ranks.operate import feed, operation, views
from allranks.bench.ranks.tell import Me, Wishes, network, tell
from allranks.fabric.pairs import Group, bisect, pairwise

PLANS = {"pairs": pairwise, "bisect": bisect}
LONGEST = timedelta(hours=12)
GPU_BYTES, CPU_BYTES = 256 << 20, 4 << 20
"""Size of the message that is timed, for NCCL and for gloo."""

Result = Dict[str, Any]


def run(wishes: Wishes) -> int:
    """Measure all rounds; returns the exit code."""
    me = Me.find()
    master, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(master, port, is_master=not me.rank, wait_for_workers=False, timeout=LONGEST)
    if not me.local_rank:
        store.set(f"name/{me.node}", os.environ.get("ALLRANKS_NODE_NAME") or socket.gethostname())
    leads = _lead(wishes, me, store) if not me.rank else None
    number = 0
    while True:
        groups = next(leads) if leads else json.loads(store.get(f"plan/{number}"))
        if not groups:
            break
        mine = next((tuple(group) for group in groups if me.node in group), None)
        if mine:
            store.set(f"result/{number}/{me.rank}", json.dumps(_measure(wishes, me, mine, number)))
        number += 1
    _leave(me, store)
    return 0


def _leave(me: Me, store: Any) -> None:
    """Rank 0's store goes last."""
    store.set(f"left/{me.rank}", "1")
    if not me.rank:
        store.wait([f"left/{rank}" for rank in range(me.ranks)], timedelta(seconds=30))


def _lead(wishes: Wishes, me: Me, store: Any) -> Any:
    """Rank 0's part: publishes each round, lets itself measure, collects, tells. An empty round is the end."""
    names = [store.get(f"name/{node}").decode() for node in range(me.nodes)]
    tell("begin", ranks=me.ranks, nodes=me.nodes, names=names, network=network(), rounds=wishes.rounds)
    if me.nodes > 1:
        plan = PLANS[wishes.rounds](me.nodes)
        groups: Optional[List[Group]] = next(plan)
        number = 0
        while groups:
            store.set(f"plan/{number}", json.dumps(groups))
            yield groups
            found = {group: _collect(wishes, me, store, number, group) for group in groups}
            for group, (speed, why) in found.items():
                tell("group", round=number, nodes=list(group), busbw=speed, why=why)
            number += 1
            try:
                groups = plan.send({group: speed for group, (speed, _) in found.items()})
            except StopIteration:
                groups = None
    else:
        number = 0
    store.set(f"plan/{number}", "[]")
    tell("end")
    yield []


def _collect(wishes: Wishes, me: Me, store: Any, number: int, group: Group) -> Tuple[Optional[float], str]:
    """What a group reached: its slowest rank's figure, and the first rank's trouble."""
    results = []
    for rank in _ranks(me, group):
        results.append((rank, json.loads(store.get(f"result/{number}/{rank}"))))
    troubles = [f"rank {rank}: {result['why']}" for rank, result in results if result.get("why")]
    if troubles:
        return None, troubles[0]
    return min(result["busbw"] for _, result in results), ""


def _ranks(me: Me, group: Group) -> List[int]:
    return [node * me.local_ranks + local for node in group for local in range(me.local_ranks)]


def _measure(wishes: Wishes, me: Me, group: Group, number: int) -> Result:
    """In a child of its own, which is killed when it takes too long."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        os.close(reading)
        _child(wishes, me, group, number, writing)
    os.close(writing)
    try:
        return _hear(reading, wishes.timeout)
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _hear(reading: int, seconds: float) -> Result:
    until, said = time.monotonic() + seconds, b""
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return {"why": f"no result within {seconds:g} s"}
        piece = os.read(reading, 1 << 16)
        if not piece:
            return json.loads(said) if said else {"why": "its process died"}
        said += piece


def _child(wishes: Wishes, me: Me, group: Group, number: int, writing: int) -> None:
    """Never returns."""
    code = 1
    try:
        found: Result = {"busbw": _busbw(wishes, me, _ranks(me, group), f"{number}.{group[0]}")}
        code = 0
    except Exception as error:  # noqa: BLE001 - whatever NCCL or gloo raise is this group's result
        found = {"why": str(error).splitlines()[0][:300] if str(error) else type(error).__name__}
    os.write(writing, json.dumps(found).encode())
    os._exit(code)


def _busbw(wishes: Wishes, me: Me, ranks: List[int], prefix: str) -> float:
    """GB/s of an all_reduce among these ranks; the best of a few, since noise only slows."""
    device = find_device(wishes.backend, me)
    patience = timedelta(seconds=wishes.timeout * 0.8)
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=patience)
    dist.init_process_group(
        device.backend, store=dist.PrefixStore(prefix, store), rank=ranks.index(me.rank), world_size=len(ranks),
        timeout=patience,
    )  # fmt: skip
    import torch

    size = GPU_BYTES if device.backend == "nccl" else CPU_BYTES
    on = views("all_reduce", torch.zeros(size // ELEMENT, device=device.torch), size // ELEMENT, len(ranks))
    call = operation("all_reduce", on, dist.get_rank(), len(ranks))
    feed(on)
    for _ in range(2):
        call()
    device.wait()
    dist.barrier()
    each, _ = device.times(call, 5, False)
    dist.barrier()
    return busbw("all_reduce", size, len(ranks), min(each))
