"""Trains, saves and goes on from the newest complete checkpoint; a rank does itself harm where the draw says so.

The one argument is a file with the draw as JSON (see ``harness.py``). What every rank does is told in ``out/log``, a
line each: monotonic time, attempt, rank, what, number. The weights are a function of every step that was made, so that
a step lost or made twice shows in the result. ``torch`` ranks add up their gradients with gloo, ``plain`` ones train
alone.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

draw = json.loads(Path(sys.argv[1]).read_text())
rank, attempt = int(os.environ["RANK"]), int(os.environ["ALLRANKS_ATTEMPT"])
checkpoints = Path(draw["checkpoints"])
if draw["program"] == "torch":
    import torch
    import torch.distributed as dist

    from allranks import checkpoint
else:
    checkpoints /= str(rank)  # alone: its own weights

log = os.open(Path(draw["out"], "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
filler = Path(draw["checkpoints"], "filler")
faults = [f for f in draw["faults"] if (f["attempt"], f["rank"], f["inside"]) == (attempt, rank, True)]
fault: dict[str, Any] = faults[0] if faults else {"name": "", "after": 0, "number": 0}
made = 0


def say(what: str, number: int = 0) -> None:
    os.write(log, f"{time.monotonic():.4f} {attempt} {rank} {what} {number}\n".encode())


class Bomb:
    """Ends the process in the midst of pickling, so that a half-written file stays."""

    def __reduce__(self) -> str:
        say("harm")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("alive")


def fill_the_disk() -> None:
    """Leave no room where checkpoints go, until the next attempt."""
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096) > 0:
                pass
        except OSError:
            say("harm")


def is_its_turn() -> bool:
    """Faults come one after another: the harness says when, and this many steps must have been made as well."""
    return made >= fault["after"] and Path(draw["out"], f"go-{fault['number']}").exists()


def harm() -> None:
    """What the draw has for this rank in this attempt, when its turn has come."""
    name = fault["name"]
    if name in ("", "disk full", "kill in save") or not is_its_turn():
        return
    say("harm")
    if name == "exit":
        sys.exit(fault["code"])
    elif name == "exception":
        raise RuntimeError(f"drawn for rank {rank}")
    elif name == "import":
        import not_there_at_all  # type: ignore[import-not-found]  # noqa: F401
    elif name == "segfault":
        ctypes.string_at(0)
    elif name == "abort":
        os.abort()
    elif name == "oom":
        hog = []
        while True:
            hog.append(b"x" * (1 << 24))
    elif name == "spin":
        while True:
            pass
    elif name == "gil":
        while True:
            ctypes.PyDLL(None).sleep(1000)
    elif name == "skip":
        threading.Event().wait()
    elif name == "mismatch":
        ones = torch.ones(100, dtype=torch.int64)
        dist.all_gather([ones.clone() for _ in range(dist.get_world_size())], ones)


def newest() -> tuple[int, int]:
    if draw["program"] == "torch":
        found = checkpoint.newest(checkpoints, start_over=True)
        state = torch.load(found.path) if found else {"step": 0, "weights": 0}
        return state["step"], state["weights"]
    complete = sorted(checkpoints.glob("*.json"), key=lambda path: int(path.stem))
    state = json.loads(complete[-1].read_text()) if complete else {"step": 0, "weights": 0}
    return state["step"], state["weights"]


def save(step: int, weights: int) -> None:
    """Rank 0 of a torch gang; every rank where all train alone."""
    mine = fault if is_its_turn() else {"name": ""}
    say("saving", step)
    if mine["name"] == "disk full":
        fill_the_disk()
    state = {"step": step, "weights": weights, "ballast": b"x" * 20000}
    if draw["program"] == "torch":
        if mine["name"] == "kill in save":
            state["bomb"] = Bomb()
        checkpoint.save(state, checkpoints / f"step-{step}.pt")
    else:
        fresh = checkpoints / f".{step}.new"
        fresh.write_text(json.dumps({**state, "ballast": "x" * 20000}))
        if mine["name"] == "kill in save":
            Bomb().__reduce__()
        fresh.replace(checkpoints / f"{step}.json")
    say("saved", step)


def together(mine: int) -> int:
    """The sum over all ranks, or one's own where all train alone."""
    if draw["program"] == "plain":
        return mine
    total = torch.full((100,), mine)  # as large as what "mismatch" gathers
    dist.all_reduce(total)
    return int(total[0].item())


def released() -> bool:
    """Whether the harness is through with its faults; all ranks of a torch gang see it in the same round."""
    there = Path(draw["out"], "release").exists()
    return together(int(there and rank == 0)) > 0 if draw["program"] == "torch" else there


say("began")
filler.unlink(missing_ok=True)
checkpoints.mkdir(parents=True, exist_ok=True)
if draw["program"] == "torch":
    dist.init_process_group("gloo")
step, weights = newest()
together(0)  # nobody saves before all have looked
say("resumed", step)
while step < draw["steps"]:
    total = together((rank + 1) * (step + 1))
    weights = (weights * 1103515245 + total) % (2**61 - 1)
    step, made = step + 1, made + 1
    say("step", step)
    harm()
    if step % draw["every"] == 0 and (rank == 0 or draw["program"] == "plain"):
        save(step, weights)
    time.sleep(0.02)
while not released():
    made += 1
    say("round", made)
    harm()
    if fault["name"] in ("disk full", "kill in save") and is_its_turn():
        save(step + made, weights)
    time.sleep(0.02)
Path(draw["out"], f"result-{rank}").write_text(str(weights))
say("done", step)
