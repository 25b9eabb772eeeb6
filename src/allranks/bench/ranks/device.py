"""Where buffers live and how time is told there: a GPU with NCCL, or the CPU with gloo."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, List, Tuple

import torch
import torch.distributed as dist

from allranks.bench.ranks.tell import Me

Operation = Callable[[], object]
INNER = 50
"""Operations in one CUDA graph: a launch of the graph is shared by so many."""


class Device:
    """The CPU. ``times`` gives seconds of each iteration, and their mean over the whole."""

    backend = "gloo"

    def __init__(self) -> None:
        self.torch = torch.device("cpu")
        self.name = _processor()

    def free(self, local_ranks: int) -> int:
        """Bytes that one rank may take."""
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":") for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024 // 2 // local_ranks

    def room(self, elements: int, memory: str) -> Any:
        """A flat buffer of zeros; ``memory`` is of GPUs alone."""
        return torch.zeros(elements, device=self.torch)

    def leave(self) -> None:
        """Take back what ``room`` told others; on all ranks, before the process group goes."""

    def times(self, operation: Operation, iterations: int, graph: bool) -> Tuple[List[float], float]:
        marks = [time.perf_counter()]
        for _ in range(iterations):
            operation()
            marks.append(time.perf_counter())
        return [b - a for a, b in zip(marks, marks[1:])], (marks[-1] - marks[0]) / iterations

    def can_graph(self) -> bool:
        return False

    def wait(self) -> None:
        """Until what was started is done."""


class Gpu(Device):
    """One GPU. Operations are started back to back and timed by events, as nccl-tests does by the host's clock."""

    backend = "nccl"

    def __init__(self, me: Me) -> None:
        # No two graphs with collectives run at a time here; allowing for it is an event after each (strongstream.cc).
        os.environ.setdefault("NCCL_GRAPH_MIXING_SUPPORT", "0")
        self._pool: Any = None
        self._registered = False
        self.torch = torch.device("cuda", me.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(self.torch)
        self.name = torch.cuda.get_device_name(self.torch)

    def free(self, local_ranks: int) -> int:
        return int(torch.cuda.mem_get_info(self.torch)[0] * 0.9)

    def can_graph(self) -> bool:
        return True

    def room(self, elements: int, memory: str) -> Any:
        """``nccl`` is NCCL's own memory, as nccl-tests takes it; ``symmetric`` is also registered so (its -R 2).

        Where torch or NCCL is too old for it, ``nccl`` is torch's memory. Raises SystemExit for ``symmetric`` there.
        """
        backend = dist.group.WORLD._get_backend(self.torch)
        try:
            self._pool = torch.cuda.MemPool(backend.mem_allocator) if memory != "torch" else None
        except (AttributeError, TypeError, RuntimeError) as error:
            if memory == "symmetric":
                raise SystemExit(f"bench: memory symmetric needs torch 2.9 and NCCL 2.27 or newer: {error}") from error
        if not self._pool:
            return super().room(elements, memory)
        with torch.cuda.use_mem_pool(self._pool):
            flat = super().room(elements, memory)
        if memory == "symmetric":
            backend.register_mem_pool(self._pool, symm=True)
            self._registered = True
        return flat

    def leave(self) -> None:
        if self._registered:
            self.wait()
            dist.group.WORLD._get_backend(self.torch).deregister_mem_pool(self._pool)

    def wait(self) -> None:
        torch.cuda.synchronize()

    def times(self, operation: Operation, iterations: int, graph: bool) -> Tuple[List[float], float]:
        """With ``graph`` each iteration is one launch of INNER operations, and its time the mean of those.

        The mean is of a pass with no events in between, which would cost a microsecond each.
        """
        each = 1
        if graph:
            operation, each = _captured(operation), INNER
        (whole,) = self._pass(operation, iterations, every=iterations)
        spans = self._pass(operation, iterations, every=1)
        return [span / each for span in spans], whole / iterations / each

    def _pass(self, operation: Operation, iterations: int, every: int) -> List[float]:
        """Seconds of each ``every`` operations, started back to back.

        One more goes before: no rank's first event is then early, and the GPU is busy while the next are launched.
        """
        events = [torch.cuda.Event(enable_timing=True) for _ in range(iterations // every + 1)]
        dist.barrier()
        torch.cuda.synchronize()
        operation()
        events[0].record()
        for event in events[1:]:
            for _ in range(every):
                operation()
            event.record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) / 1e3 for a, b in zip(events, events[1:])]


def _captured(operation: Operation) -> Operation:
    """INNER of it as one CUDA graph, launched twice to be warm."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(INNER):
            operation()
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    replay: Operation = graph.replay
    return replay


def find_device(backend: str, me: Me) -> Device:
    """``auto`` takes NCCL where every local rank can have a GPU of its own."""
    if backend == "gloo" or (backend == "auto" and torch.cuda.device_count() < me.local_ranks):
        return Device()
    if not torch.cuda.device_count():
        raise SystemExit("bench: backend nccl was asked for, but torch sees no GPU; see: nvidia-smi, allranks doctor")
    return Gpu(me)


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return f"{os.cpu_count()} x {names[0] if names else os.uname().machine}"
