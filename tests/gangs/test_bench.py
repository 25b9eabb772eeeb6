"""``allranks bench`` on real gangs with gloo: figures, correctness, interruption, and who is slow."""

from __future__ import annotations

import json
import os
import re
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


WRONG = """
import torch.distributed as dist
right = dist.all_reduce
def all_reduce(tensor, *rest, **more):
    right(tensor, *rest, **more)
    if tensor.is_floating_point():
        tensor[5] += 1
dist.all_reduce = all_reduce
"""
HANGS = """
import signal
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGSTOP))
"""


def program(folder: Path, of_rank_1: str, wishes: Wishes, *size: str) -> subprocess.CompletedProcess[str]:
    """Run what a bench runs on its ranks, after something that rank 1 alone does to itself."""
    indented = "".join(f"    {line}\n" for line in of_rank_1.strip().splitlines())
    (folder / "program.py").write_text(
        f"import os, runpy\nif os.environ['RANK'] == '1':\n{indented}"
        "runpy.run_module('allranks.bench.ranks', run_name='__main__')\n"
    )
    words = [*CLI, "run", "--name", "p", *size, "--", sys.executable, "program.py", wishes.text()]
    return subprocess.run(words, capture_output=True, text=True, timeout=240, cwd=folder)


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
    wishes = Wishes(backend="gloo", smallest=1 << 20, largest=1 << 20, iterations=3)
    done = program(tmp_path, WRONG, wishes, "--ranks", "2")
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
    assert re.search(r"verdict: all_reduce: .*default.*(at their best|or was not honoured)", done.stdout), done.stdout


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
    began = time.monotonic()
    done = program(tmp_path, HANGS, Wishes(backend="gloo", rounds="pairs", timeout=6), "--nodes", "3")
    speeds: dict[tuple[int, ...], float | None] = {}
    for line in done.stdout.splitlines():
        found = message(line.partition("| ")[2])
        if found and found["allranks.bench"] == "group":
            keep(speeds, {tuple(found["nodes"]): found["busbw"]})
    assert judge(speeds).broken == (1,), done.stdout + done.stderr
    assert time.monotonic() - began < 240
