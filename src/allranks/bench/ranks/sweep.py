"""Every collective over a ladder of sizes, in one process group of all ranks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Dict, List

import torch
import torch.distributed as dist

from allranks.bench.collectives import ALIGNED, COLLECTIVES, ELEMENT, Collective, algbw, ladder, percentile
from allranks.bench.ranks.device import Device, find_device
from allranks.bench.ranks.operate import PIECE, Buffers, Operation, feed, operation, views, wrong
from allranks.bench.ranks.tell import Me, Wishes, network, tell

GPU_LARGEST, CPU_LARGEST = 16 << 30, 64 << 20
FEWEST = 3
"""Iterations of a size that takes longer than there is patience for."""


def run(wishes: Wishes) -> int:
    """Measure all that is wished; returns the exit code."""
    me = Me.find()
    device = find_device(wishes.backend, me)
    dist.init_process_group(device.backend, timeout=timedelta(seconds=wishes.timeout), **_bound(device))
    sweep = Sweep(wishes, me, device)
    sweep.begin()
    for name in wishes.collectives:
        sweep.measure(COLLECTIVES[name])
    device.leave()
    if not me.rank:
        tell("end")
    dist.destroy_process_group()
    return 0


def _bound(device: Device) -> Dict[str, Any]:
    """Bind the group to its GPU, except where torch then hangs (2.6.0: pytorch/pytorch#153960)."""
    return {} if device.torch.type == "cpu" or torch.__version__.startswith("2.6") else {"device_id": device.torch}


class Sweep:
    """Holds one flat buffer that all messages are views of."""

    def __init__(self, wishes: Wishes, me: Me, device: Device) -> None:
        self._wishes, self._me, self._device = wishes, me, device
        self._flat: Any = None

    def begin(self) -> None:
        """Say what this is, and take the memory."""
        me, device = self._me, self._device
        device.wait()
        most = self._agree(device.free(me.local_ranks) - 16 * PIECE * ELEMENT, dist.ReduceOp.MIN)
        dearest = max(COLLECTIVES[name].buffers(me.ranks) for name in self._wishes.collectives)
        wished = self._wishes.largest or (GPU_LARGEST if device.can_graph() else CPU_LARGEST)
        self._largest = min(wished, int(most / dearest))
        sizes = ladder(self._wishes.smallest, self._largest)
        if not sizes:
            raise SystemExit(f"bench: {most} bytes of memory are free, too little for {self._wishes.smallest} bytes")
        elements = int(sizes[-1] * dearest) // ELEMENT + ALIGNED * me.ranks
        self._flat = device.room(elements, self._wishes.memory)
        self._sizes = sizes
        if not me.rank:
            tell("begin", ranks=me.ranks, nodes=me.nodes, backend=device.backend, device=device.name,
                 torch=torch.__version__, nccl=_nccl(device), sizes=sizes, bounded=self._largest < wished,
                 memory=self._wishes.memory,                 network=network())  # fmt: skip

    def measure(self, collective: Collective) -> None:
        """One collective over all sizes; rank 0 tells each as soon as it is known."""
        for size in self._sizes:
            count = collective.count(size, self._me.ranks)
            if not count:
                continue
            on = views(collective.name, self._flat, count, self._me.ranks)
            call = operation(collective.name, on, self._me.rank, self._me.ranks)
            self._size(collective, on, call, count)

    def _size(self, collective: Collective, on: Buffers, call: Operation, count: int) -> None:
        size, ranks = count * ELEMENT, self._me.ranks
        feed(on)
        iterations = self._warm(call)
        graph = self._device.can_graph() and size < self._wishes.graph_below
        feed(on)
        dist.barrier()
        each, mean = self._device.times(call, iterations, graph)
        found = self._gather([mean, percentile(each, 0.5), percentile(each, 0.99), min(each), max(each)])
        bad = self._agree(wrong(collective.name, on, call, self._me.rank, ranks), dist.ReduceOp.SUM)
        if self._me.rank:
            return
        means = [row[0] for row in found]
        seconds = sum(means) / len(means)
        speed = algbw(size, seconds)
        tell(
            "row", collective=collective.name, size=size, count=count if not collective.sliced else count // ranks,
            seconds=seconds, p50=_mean(found, 1), p99=max(row[2] for row in found),
            fastest=min(row[3] for row in found), slowest=max(row[4] for row in found),
            algbw=speed, busbw=speed * collective.factor(ranks), wrong=bad, graph=graph, iterations=iterations,
        )  # fmt: skip

    def _warm(self, call: Operation) -> int:
        """Warm up, and agree on iterations that take no longer than there is patience for."""
        from time import perf_counter

        call()
        self._device.wait()
        began = perf_counter()
        call()
        self._device.wait()
        took = self._agree(int((perf_counter() - began) * 1e6), dist.ReduceOp.MAX) / 1e6
        affordable = int(self._wishes.patience / max(took, 1e-9))
        for _ in range(min(self._wishes.warmup - 2, affordable // 4)):
            call()
        self._device.wait()
        return max(FEWEST, min(self._wishes.iterations, affordable))

    def _agree(self, value: int, how: Any) -> int:
        """One number of all ranks'."""
        shared = torch.tensor([value], dtype=torch.int64, device=self._device.torch)
        dist.all_reduce(shared, how)
        return int(shared.item())

    def _gather(self, values: List[float]) -> List[List[float]]:
        mine = torch.tensor(values, dtype=torch.float64, device=self._device.torch)
        all_of_them = [torch.empty_like(mine) for _ in range(self._me.ranks)]
        dist.all_gather(all_of_them, mine)
        return [row.tolist() for row in all_of_them]


def _mean(rows: List[List[float]], column: int) -> float:
    return sum(row[column] for row in rows) / len(rows)


def _nccl(device: Device) -> str:
    return ".".join(map(str, torch.cuda.nccl.version())) if device.backend == "nccl" else ""
