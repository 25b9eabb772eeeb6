"""``allranks bench`` on real gangs with gloo: figures, correctness, interruption, and who is slow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from allranks.bench.ranks.tell import Wishes
from allranks.bench.result import message
from allranks.fabric.pairs import judge, keep
from tests.gangs.gang import CLI
from tests.network import hosts, needs_network, slow_down

pytestmark = [pytest.mark.gang, pytest.mark.torch]
SMALL = ("--backend", "gloo", "--iterations", "3", "--max-size", "64K")


def bench(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CLI, "bench", *words], capture_output=True, text=True, timeout=240, **options)


def test_all_collectives_are_measured_and_right(tmp_path: Path) -> None:
    done = bench("all", "--ranks", "3", *SMALL, "-o", "json", "--html", "page.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (curve,) = json.loads(done.stdout)["curves"]
    names = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "sendrecv"]
    assert list(dict.fromkeys(row["collective"] for row in curve["rows"])) == names
    assert all(row["wrong"] == 0 and row["seconds"] > 0 for row in curve["rows"])
    assert [row["size"] for row in curve["rows"][:2]] == [32768, 65536]
    assert "<polyline" in (tmp_path / "page.html").read_text()


def test_a_rank_whose_sums_are_wrong_is_found(tmp_path: Path) -> None:
    """A library that one rank loads in front breaks its all_reduce, as a bad link or ECC error would."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, threading, time, sys\n"
        "def breaks():\n"
        "    while 'allranks.bench.ranks.operate' not in sys.modules: time.sleep(0.01)\n"
        "    time.sleep(0.2)\n"
        "    import torch.distributed as dist\n"
        "    right = dist.all_reduce\n"
        "    def wrong(tensor, *rest, **more):\n"
        "        right(tensor, *rest, **more)\n"
        "        if tensor.dtype.is_floating_point: tensor[5] += 1\n"
        "    dist.all_reduce = wrong\n"
        "if os.environ.get('RANK') == '1': threading.Thread(target=breaks, daemon=True).start()\n"
    )
    words = [sys.executable, "-m", "allranks.bench.ranks"]
    wishes = Wishes(backend="gloo", smallest=1 << 20, largest=1 << 20, iterations=3).text()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [*CLI, "run", "--name", "w", "--ranks", "2", "--", *words, wishes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, cwd=tmp_path)
    rows = [found for line in done.stdout.splitlines() if (found := message(line.partition("| ")[2]))]
    assert [row["wrong"] for row in rows if "wrong" in row] == [1], done.stdout + done.stderr


def test_ctrl_c_shows_what_there_is(tmp_path: Path) -> None:
    words = [*CLI, "bench", "--ranks", "2", "--backend", "gloo", "--iterations", "200", "--max-size", "256M"]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert running.stdout is not None
    try:
        for line in running.stdout:
            if " 65536 " in line:
                break
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 130, err
    assert "verdict: it did not run to its end" in out
    assert "all_reduce peaks at" in out


def test_two_settings_are_measured_one_after_the_other(tmp_path: Path) -> None:
    done = bench("--ranks", "2", *SMALL, "--compare", "default,GLOO_SOCKET_IFNAME=lo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "# all_reduce: busbw in GB/s, time in us" in done.stdout
    assert "verdict: all_reduce: default" in done.stdout


def test_rdma_that_is_not_there_is_told_and_the_other_setting_is_still_measured(tmp_path: Path) -> None:
    done = bench("--nodes", "2", *SMALL, "--compare", "rdma,tcp", cwd=tmp_path)
    assert done.returncode == 69, done.stderr
    assert "no RDMA device can be used here" in done.stderr
    assert "tcp gave nothing" not in done.stdout
    assert "(tcp)" in done.stdout


@needs_network
def test_pairs_name_the_node_that_tc_slowed(tmp_path: Path) -> None:
    """One rank a namespace, as pods would run it; the same lines and the same judgement as the command line's."""
    wishes = Wishes(backend="gloo", rounds="pairs").text()
    with hosts(3) as names:
        slow_down(names[1], "80mbit")
        ranks = [_rank(name, rank, wishes) for rank, name in enumerate(names)]
        try:
            out, err = ranks[0].communicate(timeout=200)
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
    speeds: dict[tuple[int, ...], float | None] = {}
    for line in out.splitlines():
        found = message(line)
        if found and found["allranks.bench"] == "group":
            keep(speeds, {tuple(found["nodes"]): found["busbw"]})
    assert judge(speeds).slow == (1,), out + err


def _rank(name: str, rank: int, wishes: str) -> subprocess.Popen[str]:
    place = {
        "RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29431", "GLOO_SOCKET_IFNAME": "eth0",
    }  # fmt: skip
    return subprocess.Popen(
        ["ip", "netns", "exec", name, sys.executable, "-m", "allranks.bench.ranks", wishes],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **place},
    )  # fmt: skip


def test_a_group_that_hangs_is_told_and_the_others_are_measured(tmp_path: Path) -> None:
    """Node 1's children of the second round stop; the first and third round have figures."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal\n"
        "if os.environ.get('NODE_RANK') == '1':\n"
        "    os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGSTOP))\n"
    )
    began = time.monotonic()
    wishes = Wishes(backend="gloo", rounds="pairs", timeout=15).text()
    words = [sys.executable, "-m", "allranks.bench.ranks", wishes]
    command = [*CLI, "run", "--name", "h", "--nodes", "3", "--launcher", "once", "--", *words]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, cwd=tmp_path)
    speeds: dict[tuple[int, ...], float | None] = {}
    for line in done.stdout.splitlines():
        found = message(line.partition("| ")[2])
        if found and found["allranks.bench"] == "group":
            keep(speeds, {tuple(found["nodes"]): found["busbw"]})
    assert judge(speeds).broken == (1,), done.stdout + done.stderr
    assert time.monotonic() - began < 240
