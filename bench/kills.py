"""kill -9 and SIGSTOP of every rank of a service in turn, under load: what its clients saw, and when it served again.

``python bench/kills.py --times 20 [--model FOLDER]``; a tiny random model if none is named. Dead is when no process of
the attempt's ranks is left. Clients ask for one greedy answer over and over. Every answer that claims to be
whole must be that answer; no request may outlive its timeout; /health must say so within 5 s; the cause must name the
rank. With ``--engine ray`` also what Ray runs is hit: ``--hit coordinator,door,raylet``, see RAYS. What is hit without
breaking the gang (Ray's head keeps no request) may stay unnoticed, if answers go on. The exit code is 1 when any of
this does not hold.
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
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from allranks.bench.load.ask import Seen, Wish, ask  # noqa: E402
from allranks.bench.load.wire import Endpoint, Exchange, Failed  # noqa: E402
from allranks.node import processes  # noqa: E402
from allranks.node.listen import free_port  # noqa: E402

CLI = [sys.executable, "-m", "allranks"]
HEALTH_LIMIT = 5.0
AGAIN_LIMIT = 120.0
QUIET = {"raylet": 80.0, "head": 80.0}
"""Seconds in which what breaks no gang at once would have been noticed, if it ever is; 10 for all else."""
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
RAYS = {
    "coordinator": "ray::ServeReplica:killed:gang",
    "actor": "ray::_Placed",
    "door": "ray::ServeReplica:killed:door",
    "proxy": "ray::ProxyActor",
    "controller": "ray::ServeController",
    "raylet": "/raylet ",
    "head": "/gcs_server ",
}
"""What can be hit on Ray beside a rank (0, 1, ...), by what its process's title has in it."""
GANG = ("coordinator", "actor")
"""With these goes the gang at once. Without what else is Ray's it goes on for as long as Ray lets it."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--new", type=int, default=200)
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--model", default="")
    parser.add_argument("--engine", default="local")
    parser.add_argument("--hit", default="", help="ranks, and with engine ray: " + ", ".join(RAYS))
    parser.add_argument("--dtype", default="auto")
    args = parser.parse_args()
    args.hit = (
        args.hit.split(",") if args.hit else [*map(str, range(args.ranks)), *(RAYS if args.engine == "ray" else ())]
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    with tempfile.TemporaryDirectory() as place, service(Path(place), args) as (port, env):
        told = asyncio.run(Test(args, Endpoint("127.0.0.1", port), env).run())
    print(json.dumps(told))
    return int(told["recovered"] != args.times or any(told["wrong"].values()))


@contextlib.contextmanager
def service(place: Path, args: argparse.Namespace) -> Iterator[tuple[int, dict[str, str]]]:
    model = args.model or _tiny(place / "model")
    port = free_port()
    head = f"kind: Service\nname: killed\nmodel: {model}\nranks_per_node: {args.ranks}\nport: {port}\n"
    (place / "service.yaml").write_text(f"{head}dtype: {args.dtype}\nfailure: {{restarts: 1000, grace: 10s}}\n")
    env = {**os.environ, "XDG_STATE_HOME": str(place / "state"), "XDG_CACHE_HOME": str(place / "cache")}
    serve = [*CLI, "serve", str(place / "service.yaml"), "--engine", args.engine, "--detach"]
    subprocess.run(serve, env=env, check=True, stdout=sys.stderr)
    try:
        yield port, env
    finally:
        subprocess.run([*CLI, "cancel", "killed"], env=env, check=False, stderr=subprocess.DEVNULL)


def _tiny(folder: Path) -> str:
    from tests.serving import models

    models.save_tokenizer(models.save(folder))
    return str(folder)


class Test:
    """Clients that go on for as long as ranks are broken, and what both find."""

    def __init__(self, args: argparse.Namespace, endpoint: Endpoint, env: dict[str, str]) -> None:
        self.args, self.endpoint, self.env = args, endpoint, env
        body = {"prompt": "The for statement", "max_tokens": args.new, "temperature": 0, "stream": True}
        self.wish = Wish("/v1/completions", {**body, "stream_options": {"include_usage": True}})
        self.found: list[Seen] = []
        self.wrong: Counter[str] = Counter()

    async def run(self) -> dict[str, Any]:
        right = await self._ask()
        if right.error:
            raise SystemExit(f"the first request failed: {right.message}")
        clients = [asyncio.ensure_future(self._client()) for _ in range(self.args.clients)]
        rows = [await self._break(number) for number in range(self.args.times)]
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        done = [seen for seen in self.found if seen.ended]
        self.wrong["truncated in silence"] = sum(seen.whole and seen.text != right.text for seen in done)
        self.wrong["longer than the timeout"] = sum(seen.error == "timeout" for seen in done)
        back = [row["again"] for row in rows if row["again"] is not None]
        noticed = [row["noticed"] for row in rows if row["noticed"] is not None]
        return {
            "times": len(rows), "recovered": len(back), "wrong": dict(self.wrong),
            "answers": sum(seen.whole for seen in done), "errors": Counter(seen.error for seen in done if seen.error),
            "dead_s": {how.name: spread([row["dead"] for row in rows if row["signal"] == how.name and row["dead"]])
                       for how in SIGNALS},
            "health_false_s": spread(noticed), "serving_again_s": spread(back), "load": os.getloadavg()[0],
        }  # fmt: skip

    async def _ask(self) -> Seen:
        seen = Seen(time.perf_counter())
        self.found.append(seen)
        await ask(self.endpoint, self.wish, self.args.timeout, seen)
        return seen

    async def _client(self) -> None:
        while True:
            if (await self._ask()).error:
                await asyncio.sleep(0.2)

    async def _break(self, number: int) -> dict[str, Any]:
        """One process, one signal."""
        what = self.args.hit[number // len(SIGNALS) % len(self.args.hit)]
        how = SIGNALS[number % len(SIGNALS)]
        await asyncio.sleep(1)  # in the midst of answers
        pids: list[int] = []
        while len(pids) < self.args.ranks or not all(pids):  # who keeps it may be a moment behind its /ready
            status = await self._status()
            pids = [one["pid"] for node in status["nodes"] for one in node["ranks"]]
        os.kill(pids[int(what)] if what.isdecimal() else self._ray(RAYS[what]), how)
        began = time.perf_counter()
        dead = asyncio.ensure_future(_until_dead(pids, began))
        noticed = await self._until("/health", False, began, None if what in GANG else QUIET.get(what, 10.0))
        again = 0.0 if noticed is None else await self._until("/ready", True, began)
        after = await self._status()
        stayed = all(map(is_alive, pids))
        self._judge(what, status, after, noticed and noticed - (0 if stayed or what in GANG else await dead))
        if stayed:
            dead.cancel()
        row = {"hit": what, "signal": how.name, "dead": None if stayed else await dead, "noticed": noticed}
        row |= {"again": again, "used": after["restarts"]["used"] - status["restarts"]["used"]}
        row["cause"] = "; ".join(cause["message"] for cause in _new(status, after))
        print(json.dumps(row), flush=True)
        return row

    def _judge(self, what: str, before: dict[str, Any], after: dict[str, Any], noticed: float | None) -> None:
        """Who breaks the gang must be noticed, named and counted, and what breaks it besides counted as well."""
        new = len(_new(before, after))
        self.wrong["/health late"] += noticed > HEALTH_LIMIT if noticed is not None else what in GANG
        self.wrong["not counted"] += after["restarts"]["used"] - before["restarts"]["used"] != new
        if what in GANG or what.isdecimal():
            self.wrong["not one restart"] += new != 1
        if what.isdecimal():
            self.wrong["another rank named"] += not new or after["causes"][-1]["rank"] != int(what)

    def _ray(self, title: str) -> int:
        """The process of our own Ray cluster whose title has this in it."""
        lock = Path(self.env["XDG_STATE_HOME"], "allranks", "ray", "killed", "lock")
        return next(pid for pid, found in below(int(lock.read_text().split()[0])).items() if title in found)

    async def _until(self, path: str, wanted: bool, began: float, limit: float | None = None) -> float | None:
        """Seconds since ``began`` until the path says 200, or no longer does; None when that takes too long."""
        while time.perf_counter() - began < (limit or AGAIN_LIMIT):
            if await self._is_well(path) == wanted:
                return round(time.perf_counter() - began, 2)
            await asyncio.sleep(0.05)
        return None

    async def _is_well(self, path: str) -> bool:
        exchange = Exchange(self.endpoint)
        try:
            await asyncio.wait_for(exchange.ask("GET", path), 5)
        except (Failed, asyncio.TimeoutError):
            return False
        finally:
            exchange.close()
        return exchange.status == 200

    async def _status(self) -> dict[str, Any]:
        command = [*CLI, "status", "killed", "-o", "json"]
        process = await asyncio.create_subprocess_exec(*command, env=self.env, stdout=asyncio.subprocess.PIPE)
        found: dict[str, Any] = json.loads((await process.communicate())[0])
        return found


def _new(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """The causes that came between two looks; only so many are kept."""
    known = {cause["at"] for cause in before["causes"]}
    return [cause for cause in after["causes"] if cause["at"] not in known]


async def _until_dead(pids: Sequence[int], began: float) -> float:
    """Seconds since ``began`` until none of them runs."""
    while any(map(is_alive, pids)) and time.perf_counter() - began < AGAIN_LIMIT:
        await asyncio.sleep(0.003)
    return round(time.perf_counter() - began, 3)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def below(pid: int) -> dict[int, str]:
    """Pid and title of all processes that a process has started, and those have."""
    titles: dict[int, str] = {}
    for child in processes.descendants(pid):
        with contextlib.suppress(OSError):
            titles[child.pid] = Path(f"/proc/{child.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return titles


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 2), "max": max(values)} if values else {}


if __name__ == "__main__":
    sys.exit(main())
