"""How soon a gang is dead once a rank was killed or stopped under load, and how soon it serves again. JSON lines.

``python bench/deaths.py MODEL --gangs 4 --trials 10``: every gang has two ranks and is served by ``allranks serve``;
signals and ranks take turns. Dead is when no process of the attempt's ranks is left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from serve import ask

CLI = [sys.executable, "-m", "allranks"]
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(true: Any, seconds: float, what: str, every: float = 0.003) -> float:
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"after {seconds} s not yet: {what}")
        time.sleep(every)
    return time.monotonic() - began


class Gang:
    """One service of two ranks."""

    def __init__(self, model: str, number: int, port: int, folder: Path) -> None:
        self.name, self.port, self.number = f"gang{number}", port, number
        self.env = {**os.environ, "XDG_STATE_HOME": str(folder / self.name), "XDG_CACHE_HOME": str(folder / "cache")}
        spec = folder / f"{self.name}.yaml"
        spec.write_text(
            f"kind: Service\nname: {self.name}\nranks_per_node: 2\nmodel: {model}\nport: {port}\n"
            "dtype: bfloat16\nlimits: {context: 4096, concurrent: 8}\nfailure: {restarts: 99, grace: 10s}\n"
        )
        done = self.cli("serve", str(spec), "--detach")
        if done.returncode:
            raise RuntimeError(done.stderr + self.cli("logs", self.name).stdout)

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*CLI, *words], env=self.env, capture_output=True, text=True, timeout=200)

    def health(self) -> Any:
        try:
            with DIRECT.open(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                return json.loads(answer.read())
        except OSError:
            return {"state": "none", "running": 0}

    def ready(self) -> bool:
        return bool(self.health()["state"] == "ready")

    def trial(self, number: int) -> dict[str, Any]:
        sent, rank = (signal.SIGKILL, signal.SIGSTOP)[number % 2], number // 2 % 2
        until(self.ready, 100, "ready", 0.05)
        listed = json.loads(self.cli("status", self.name, "-o", "json").stdout)
        pids = {one["rank"]: one["pid"] for node in listed["nodes"] for one in node["ranks"]}
        seen: list[Any] = []
        load = threading.Thread(target=lambda: seen.extend(asyncio.run(self._load())))
        load.start()
        until(lambda: self.health()["running"] >= 4, 30, "four requests run", 0.02)
        os.kill(pids[rank], sent)
        dead = until(lambda: not any(map(alive, pids.values())), 20, "all ranks are gone")
        again = dead + until(self.ready, 100, "it serves again", 0.02)
        load.join(30)
        broken = sum(bool(one.error) for one in seen)
        return {"signal": sent.name, "rank": rank, "dead_s": round(dead, 3), "again_s": round(again, 1), "told": broken}

    async def _load(self) -> list[Any]:
        wanted = {"prompt": [5, 6, 7], "max_tokens": 4000, "temperature": 0, "stream": True}
        body = json.dumps({**wanted, "stream_options": {"include_usage": True}}).encode()
        return await asyncio.gather(*(ask("127.0.0.1", self.port, body) for _ in range(4)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--gangs", type=int, default=4)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--port", type=int, default=8300)
    options = parser.parse_args()
    found: list[dict[str, Any]] = []

    def run(number: int, folder: Path) -> None:
        gang = Gang(options.model, number, options.port + number, folder)
        try:
            for trial in range(options.trials):
                found.append(gang.trial(trial + 2 * (number % 2)))
                print(json.dumps({"gang": number, **found[-1]}), flush=True)
        finally:
            gang.cli("cancel", gang.name)

    with tempfile.TemporaryDirectory() as folder:
        threads = [threading.Thread(target=run, args=(number, Path(folder))) for number in range(options.gangs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for name in ("SIGKILL", "SIGSTOP"):
        times = sorted(one["dead_s"] for one in found if one["signal"] == name)
        if times:
            middle = times[len(times) // 2]
            print(json.dumps({"signal": name, "trials": len(times), "median": middle, "worst": times[-1]}))


if __name__ == "__main__":
    main()
