"""How soon and how rightly hangs are named, on gloo or, where there are GPUs, on NCCL: `bench/hangs.py`.

Each way of hanging is met ``--times`` times by one gang that is restarted after each. ``--pauses 600`` adds a run of
that many seconds with checkpoints of a minute and uneven ranks, which must be left alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

from launchers import PROGRAMS

WAYS = ("stop", "spin", "gil", "regex", "skip")
HANG_TIMEOUT = 3
CHECKPOINT, BETWEEN = 60, 10
SPEC = "kind: Job\nname: {name}\nrun: x\nfailure: {{restarts: {restarts}, hang_timeout: {timeout}s, grace: 2s}}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20, help="how often each way is met")
    parser.add_argument("--way", action="append", choices=WAYS, help="only this one; may be repeated")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2, help="ranks of a node")
    parser.add_argument("--together", type=int, default=1, help="how many gangs at a time")
    parser.add_argument("--pauses", type=float, default=0, help="seconds of the run that must be left alone")
    args = parser.parse_args()
    gangs = [lambda way=way: hangs(way, args) for way in args.way or WAYS]
    if args.pauses:
        gangs.insert(0, lambda: pauses(args))
    with ThreadPoolExecutor(args.together) as pool:
        good = [done.result() for done in [pool.submit(gang) for gang in gangs]]
    return 0 if all(good) else 1


def hangs(way: str, args: argparse.Namespace) -> bool:
    """Meet one way of hanging again and again; print a line, and what was wrong."""
    with tempfile.TemporaryDirectory() as folder:
        began = Path(folder, "began")
        ways = ",".join([way] * args.times + ["none"])
        code, record = run(f"hang-{way}", Path(folder), args, args.times, HANG_TIMEOUT, "hang.py", str(began), ways)
        moments = [float(line) for line in began.read_text().splitlines()]
    took, wrong = [], [] if code == 0 else [f"the run ended with {code}: {record['reason']}"]
    for cause, moment in zip(record["causes"], moments, strict=True):
        at = datetime.fromisoformat(cause["at"].replace("Z", "+00:00")).timestamp()
        took.append(at - moment)
        kept = Path(cause["log"]).parents[2] / "evidence" / f"attempt-{cause['attempt']}"
        stacks = [kept / f"rank-{rank}.stack.txt" for rank in range(args.nodes * args.ranks)]
        if (cause["kind"], cause["rank"]) != ("hang", 1) or took[-1] > HANG_TIMEOUT + 5:
            wrong.append(f"attempt {cause['attempt']}: {took[-1]:.1f} s: {cause['message']}")
        elif not all(path.exists() for path in stacks) or "misbehave" not in stacks[1].read_text():
            wrong.append(f"attempt {cause['attempt']}: not all stacks are in {kept}")
    named = args.times - len(wrong)
    print(f"{way}: named {named} of {args.times}, after {statistics.median(took):.1f} s, at most {max(took):.1f} s")
    print("".join(f"  {line}\n" for line in wrong), end="", flush=True)
    return not wrong


def pauses(args: argparse.Namespace) -> bool:
    """Leave a slow gang alone: nothing may be blamed."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = [str(args.pauses), str(CHECKPOINT), str(BETWEEN)]
        timeout = CHECKPOINT + BETWEEN
        code, record = run("hang-pauses", Path(folder), args, 0, timeout, "pauses.py", *seconds)
    print(f"pauses of {CHECKPOINT} s, {args.pauses:g} s: exit {code}, {len(record['causes'])} causes", flush=True)
    return code == 0


def run(
    name: str, folder: Path, args: argparse.Namespace, restarts: int, timeout: int, program: str, *arguments: str
) -> tuple[int, dict[str, Any]]:
    """Run a gang to its end; returns its exit code and its record."""
    spec = folder / "job.yaml"
    spec.write_text(SPEC.format(name=name, restarts=restarts, timeout=timeout))
    command = [sys.executable, str(PROGRAMS / program), *arguments]
    sizes = ["--nodes", str(args.nodes), "--ranks", str(args.ranks)]
    argv = [sys.executable, "-m", "allranks", "run", str(spec), *sizes, "--", *command]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    status = [sys.executable, "-m", "allranks", "status", name, "-o", "json"]
    record: dict[str, Any] = json.loads(subprocess.run(status, capture_output=True, check=True).stdout)
    return done.returncode, record


if __name__ == "__main__":
    sys.exit(main())
