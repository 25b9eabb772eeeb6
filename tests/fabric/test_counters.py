"""Bytes by the NICs' own counters: RDMA ports from a tree, netdevs from real veth pairs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from allranks.fabric.counters import read_counters
from allranks.fabric.tree import open_tree
from tests.fabric import trees
from tests.network import hosts, needs_network

PORT = "sys/class/infiniband/mlx5_0/ports/1/counters"
READ = (
    "import json; from allranks.fabric.counters import read_counters; from allranks.fabric.tree import open_tree\n"
    "print(json.dumps(read_counters(open_tree('/')).total))"
)


def test_an_rdma_port_counts_words_of_four_bytes(tmp_path: Path) -> None:
    builder = trees.roce_host(tmp_path)
    builder.write(f"{PORT}/port_xmit_data", "1000")
    builder.write(f"{PORT}/port_rcv_data", "500")
    assert read_counters(open_tree(str(tmp_path))).rdma == {"mlx5_0:1": 6000}


def test_a_counter_that_was_reset_counts_from_zero(tmp_path: Path) -> None:
    builder = trees.roce_host(tmp_path)
    builder.write(f"{PORT}/port_xmit_data", "1000")
    before = read_counters(open_tree(str(tmp_path)))
    builder.write(f"{PORT}/port_xmit_data", "10")
    assert read_counters(open_tree(str(tmp_path))).since(before).total == {"rdma": 40, "tcp": 0}


@needs_network
def test_what_goes_over_a_veth_is_counted_as_tcp_of_its_namespace() -> None:
    with hosts(2) as (one, two):
        before = _total(one)
        server = subprocess.Popen(
            ["ip", "netns", "exec", two, sys.executable, "-c",
             "import socket; s = socket.create_server(('', 7000)); print('up', flush=True); c, _ = s.accept()\n"
             "while c.recv(1 << 20): pass"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert server.stdout is not None
            server.stdout.readline()
            send = "import socket; c = socket.create_connection(('10.77.0.2', 7000)); c.sendall(bytes(8 << 20))"
            subprocess.run(["ip", "netns", "exec", one, sys.executable, "-c", send], check=True, timeout=60)
            assert _total(one) - before >= 8 << 20
        finally:
            server.kill()
            server.communicate()


def _total(name: str) -> int:
    """Bytes of all netdevs of a namespace; ip gives it a /sys of its own."""
    done = subprocess.run(["ip", "netns", "exec", name, sys.executable, "-c", READ], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    total: int = json.loads(done.stdout)["tcp"]
    return total
