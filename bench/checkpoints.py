"""Kill ranks while DeepSpeed saves: the gang must always go on from the newest complete checkpoint.

It does if it resumes at a step that is not before the last one of which a rank had come back from ``save_checkpoint``.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import launchers
from launchers import PROGRAMS, running

from allranks.checkpoint import Incomplete, newest

NAME = "bench-checkpoints"
PATIENCE = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    args = parser.parse_args()
    wrong = torn = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "checkpoints")
        folder.mkdir()
        command = launchers.allranks(2, 1, str(PROGRAMS / "saves.py"), str(folder), restarts=args.kills, name=NAME)
        with running(command):
            for attempt in range(args.kills):
                first = _resumed(Path(scratch), attempt)
                _wait(f"a save in attempt {attempt}", lambda first=first: _saved(Path(scratch)) > first)
                time.sleep(random.uniform(0, 0.1))
                _kill(random.randrange(2), attempt)
                before = _saved(Path(scratch))
                torn += _is_torn(folder)
                resumed = _resumed(Path(scratch), attempt + 1)
                wrong += resumed < before
                print(f"kill {attempt + 1}: saved {before}, resumed {resumed}", flush=True)
    print(f"{args.kills - wrong} of {args.kills} resumed from the newest complete one; {torn} kills left a torn one")
    return 1 if wrong else 0


def _words(scratch: Path, what: str) -> list[list[int]]:
    """Of each rank the numbers that it wrote after a word."""
    files = [scratch / f"done-{rank}" for rank in range(2)]
    texts = [file.read_text() if file.exists() else "" for file in files]
    return [[int(line.split()[1]) for line in text.splitlines() if line.startswith(what)] for text in texts]


def _saved(scratch: Path) -> int:
    return max((max(steps, default=0) for steps in _words(scratch, "saved")), default=0)


def _resumed(scratch: Path, attempt: int) -> int:
    """The step that both ranks went on from in an attempt."""
    _wait(f"attempt {attempt}", lambda: all(len(steps) > attempt for steps in _words(scratch, "resumed")))
    first, second = (steps[attempt] for steps in _words(scratch, "resumed"))
    if first != second:
        raise SystemExit(f"attempt {attempt}: rank 0 went on from step {first}, rank 1 from {second}")
    return first


def _kill(rank: int, attempt: int) -> None:
    status = launchers.status(NAME)
    if status["attempt"] != attempt:
        raise SystemExit(f"attempt {attempt} ended by itself: {status['causes'][-1]['message']}")
    os.kill(status["nodes"][rank]["ranks"][0]["pid"], signal.SIGKILL)


def _is_torn(folder: Path) -> bool:
    """Whether the kill left an incomplete checkpoint that is newer than the newest complete one."""
    time.sleep(0.3)  # until the other rank is gone as well
    try:
        found = newest(folder)
    except Incomplete:
        return True
    steps = [int(path.name[len("global_step") :]) for path in folder.glob("global_step*")]
    return found is not None and found.step is not None and max(steps) > found.step


def _wait(what: str, condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"not within {PATIENCE:g} s: {what}")
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
