"""Tokens a second at many concurrent clients: ours over HTTP, transformers' batching in process, one replica a rank.

``python bench/serving.py --rounds 5``: all three are up at the same time with the same random model, cut over the same
number of ranks, and are asked in turn; a round's figures are compared with each other only. The design of one replica
a rank (tests/serving/classic.py) answers nothing by itself; here its balancer sends every request to all replicas.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from allranks.bench.load.drive import Driver, Load  # noqa: E402
from allranks.bench.load.result import row  # noqa: E402
from allranks.bench.load.wire import Endpoint  # noqa: E402
from allranks.bench.load.wishes import Wanted  # noqa: E402
from allranks.node.listen import free_port  # noqa: E402

CLI = [sys.executable, "-m", "allranks"]
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
PATIENCE = 300.0
Round = Callable[[int], float]
"""Tokens a second of a round with that seed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=96, help="of a round; classic gets one a client")
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--without", action="append", default=[], choices=["classic", "batching"])
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        model = save(Path(place), args)
        ways: dict[str, Round] = {"ours": stack.enter_context(ours(Path(place), model, args))}
        if "batching" not in args.without:
            ways["batching"] = stack.enter_context(batching(model, args))
        if "classic" not in args.without:
            ways["classic"] = stack.enter_context(classic(model, args))
        for way in ways.values():
            way(0)
        found: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(args.rounds):
            for name, way in ways.items():
                found[name].append(way(1 + number))
            print(json.dumps({name: round(values[-1], 1) for name, values in found.items()}), flush=True)
    print(json.dumps(summary(found)))


def summary(found: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, and ours by each other in the same round."""
    told: dict[str, Any] = {name: round(statistics.median(values), 1) for name, values in found.items()}
    for name in found.keys() - {"ours"}:
        ratios = sorted(a / b for a, b in zip(found["ours"], found[name], strict=True))
        told[f"ours/{name}"] = {"median": round(statistics.median(ratios), 3), "all": [round(one, 3) for one in ratios]}
    return {**told, "load": os.getloadavg()[0]}


def save(place: Path, args: argparse.Namespace) -> Path:
    from tests.serving import models

    size = {"hidden_size": args.hidden, "intermediate_size": 4 * args.hidden, "num_hidden_layers": args.layers}
    models.save_tokenizer(models.save(place / "model", **size))
    return place / "model"


@contextlib.contextmanager
def ours(place: Path, model: Path, args: argparse.Namespace) -> Iterator[Round]:
    """A gang and its HTTP API."""
    port = free_port()
    limits = f"limits: {{context: {args.prompt + args.new}, concurrent: {args.clients}}}\n"
    head = f"kind: Service\nname: benched\nmodel: {model}\nranks_per_node: {args.ranks}\nport: {port}\n"
    (place / "service.yaml").write_text(head + limits)
    env = {**os.environ, "XDG_STATE_HOME": str(place / "state"), "XDG_CACHE_HOME": str(place / "cache")}
    subprocess.run([*CLI, "serve", str(place / "service.yaml"), "--detach"], env=env, check=True, stdout=sys.stderr)
    try:
        yield lambda seed: over_http(port, args, args.requests, seed, "benched", stream=True)
    finally:
        subprocess.run([*CLI, "cancel", "benched"], env=env, check=False, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def classic(model: Path, args: argparse.Namespace) -> Iterator[Round]:
    """One replica a rank, each request sent to all of them."""
    port = free_port()
    command = [sys.executable, "-m", "tests.serving.classic", str(model), str(port), str(args.ranks), "all"]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + PATIENCE
        while not is_there(port):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit("the classic design has not come up")
            time.sleep(0.2)
        yield lambda seed: over_http(port, args, args.clients, seed, "classic", stream=False)
    finally:
        process.terminate()
        process.wait(30)


def is_there(port: int) -> bool:
    try:
        with DIRECT.open(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def batching(model: Path, args: argparse.Namespace) -> Iterator[Round]:
    """Transformers' continuous batching, no HTTP, its own control plane."""
    program = [sys.executable, str(ROOT / "bench" / "programs" / "batching.py"), str(model)]
    program += [str(args.prompt + args.new), str(args.clients)]
    shared = {"WORLD_SIZE": str(args.ranks), "LOCAL_WORLD_SIZE": str(args.ranks), "OMP_NUM_THREADS": "1"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "PYTHONUNBUFFERED": "1"}
    ranks = [
        subprocess.Popen(
            program, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
        for rank in range(args.ranks)
    ]  # fmt: skip
    first = ranks[0]
    assert first.stdin is not None and first.stdout is not None  # noqa: PT018 - they are pipes
    try:
        until_ready(first)
        yield lambda seed: in_process(first, args, seed)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "READY":
            return
    raise SystemExit("transformers' continuous batching has not come up")


def in_process(process: subprocess.Popen[str], args: argparse.Namespace, seed: int) -> float:
    assert process.stdin is not None and process.stdout is not None  # noqa: PT018
    prompts = [wish.body["prompt"] for wish in islice(wanted(args, seed, "").wishes(), args.requests)]
    process.stdin.write(json.dumps({"requests": prompts, "new": args.new}) + "\n")
    process.stdin.flush()
    told = json.loads(process.stdout.readline())
    return float(told["tokens"] / told["seconds"])


def wanted(args: argparse.Namespace, seed: int, model: str, stream: bool = True) -> Wanted:
    lengths = {"prompt": (args.prompt, args.prompt), "new": (args.new, args.new)}
    return Wanted(model, seed=seed, stream=stream, **lengths)


def over_http(port: int, args: argparse.Namespace, requests: int, seed: int, model: str, *, stream: bool) -> float:
    load = Load(clients=args.clients, requests=requests, timeout=PATIENCE, deadline=PATIENCE)
    driver = Driver(Endpoint("127.0.0.1", port), load, wanted(args, seed, model, stream).wishes())
    took = asyncio.run(driver.run())
    found = row(load, took, driver.found, stream)
    if found.errors:
        raise SystemExit(f"{model}: {dict(found.messages)}")
    return found.tokens_a_second


if __name__ == "__main__":
    main()
