"""What a tree tells of devices: which can be used from here, and why the others cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from allranks.fabric.devices import read_host
from allranks.fabric.report import look
from allranks.fabric.tree import MOST_BYTES, NotATree, Tree, open_tree
from tests.fabric import trees
from tests.fabric.trees import LINK_LOCAL, V2, TreeBuilder, gid, pairs

AT = "sys/class/infiniband/mlx5_0/ports/1"


def tree_of(builder: TreeBuilder) -> Tree:
    return open_tree(str(builder.root))


def devices(builder: TreeBuilder) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = look(tree_of(builder), {}).to_json()["devices"]
    return found


def test_a_device_is_told_with_all_its_keys(tmp_path: Path) -> None:
    device = devices(trees.macvlan_pod(tmp_path))[0]
    assert device.pop("gids")[3] == {
        "index": 7, "gid": "0000:0000:0000:0000:0000:ffff:ac12:8003", "version": "RoCE v2", "family": "ipv4",
        "netdev": "net1",
    }  # fmt: skip
    assert device == {
        "name": "mlx5_0", "port": 1, "link_layer": "Ethernet", "state": "ACTIVE", "rate_gbps": 100.0, "netdev": "net1",
        "numa": 0, "usable": True, "why": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"state": "1: DOWN"}, "its port is DOWN"),
        ({"uverbs": False}, "/dev/infiniband/uverbs0 is missing"),
        ({"link": "Unspecified"}, "its link layer is neither InfiniBand nor Ethernet: NCCL needs a plugin for it"),
        ({"slots": {}}, "it has no GID of this network namespace"),
        ({"slots": {3: (gid("10.1.1.1"), V2, "ens3np0")}}, "of this network namespace, only of another one"),
        ({"slots": {3: (gid("10.1.1.1"), None, None)}}, "of this network namespace, only of another one"),
        ({"slots": {3: (gid("10.1.1.1"), V2, "net1")}}, "of this network namespace, only of another one"),
    ],
)
def test_a_device_that_cannot_be_used_says_why(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    builder = TreeBuilder(tmp_path).netdev("net1", "10.0.0.1")
    builder.device("mlx5_0", **{"slots": pairs(0, "10.0.0.1", netdev="net1"), **options})
    device = devices(builder)[0]
    assert not device["usable"]
    assert why in device["why"]


def test_a_device_node_that_its_saver_could_not_open_is_told(tmp_path: Path) -> None:
    builder = trees.roce_host(tmp_path)
    builder.write("dev/infiniband/uverbs0", "no access")
    assert devices(builder)[0]["why"] == "/dev/infiniband/uverbs0 may not be opened"


def test_a_tree_without_dev_does_not_condemn_its_devices(tmp_path: Path) -> None:
    builder = trees.roce_host(tmp_path)
    for path in sorted((tmp_path / "dev").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / "dev").rmdir()
    assert devices(builder)[0]["usable"]


@pytest.mark.parametrize(("caps", "usable"), [("0000000000000000", False), ("0000000000004000", True)])
def test_little_locked_memory_matters_unless_one_may_lock_more(tmp_path: Path, caps: str, usable: bool) -> None:
    builder = trees.roce_host(tmp_path)
    builder.write("proc/self/limits", "Max locked memory         65536                65536                bytes")
    builder.write("proc/self/status", f"CapEff:\t{caps}")
    found = look(tree_of(builder), {}).to_json()
    assert found["devices"][0]["usable"] is usable
    assert any(finding["where"] == "memlock" for finding in found["findings"]) is not usable


def test_a_port_is_numbered_and_sorted_as_people_count(tmp_path: Path) -> None:
    builder = TreeBuilder(tmp_path)
    for number in (10, 2, 1):
        builder.device(f"mlx5_{number}", {}, link="InfiniBand", ports=2)
    for path in (tmp_path / "sys/class/infiniband_verbs").glob("*/ibdev"):
        path.unlink()
    names = [(device["name"], device["port"]) for device in devices(builder)]
    assert names == [(f"mlx5_{number}", port) for number in (1, 2, 10) for port in (1, 2)]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (f"{AT}/rate", "fast"),
        (f"{AT}/state", "\x1b[2J: up"),
        (f"{AT}/link_layer", "Token Ring\nEthernet"),
        (f"{AT}/gids/3", "no gid"),
        ("sys/class/infiniband/mlx5_0/device/numa_node", "north"),
    ],
)
def test_what_no_kernel_writes_is_a_finding(tmp_path: Path, path: str, text: str) -> None:
    builder = trees.roce_host(tmp_path)
    builder.write(path, text)
    findings = look(tree_of(builder), {}).to_json()["findings"]
    assert any(f"/{path} holds" in finding["what"] for finding in findings)


def test_a_huge_file_a_fifo_and_a_link_out_of_the_tree_do_no_harm(tmp_path: Path) -> None:
    import os

    builder = trees.roce_host(tmp_path / "tree")
    (tmp_path / "outside").write_text("4: ACTIVE\n")
    root = builder.root / AT
    (root / "rate").write_bytes(b"9" * (MOST_BYTES + 10))
    (root / "state").unlink()
    (root / "state").symlink_to(tmp_path / "outside")
    (root / "link_layer").unlink()
    os.mkfifo(root / "link_layer")
    host = read_host(tree_of(builder))
    assert (host.ports[0].state, host.ports[0].link_layer, host.ports[0].rate) == ("UNKNOWN", "Unknown", None)
    assert any("larger than 1 MiB" in text for text in host.refused)


def test_numbers_that_are_too_long_are_not_numbers(tmp_path: Path) -> None:
    builder = trees.roce_host(tmp_path)
    builder.write(f"sys/class/infiniband/mlx5_0/ports/{'9' * 50}/state", "4: ACTIVE")
    builder.write(f"{AT}/gids/{'9' * 50}", gid(LINK_LOCAL))
    assert len(devices(builder)) == 1


@pytest.mark.parametrize(("what", "error"), [("", "does not exist"), ("folder", "has no sys/class"), ("file", "tar")])
def test_no_tree_is_an_error_that_says_what_one_is(tmp_path: Path, what: str, error: str) -> None:
    root = tmp_path / "tree"
    if what == "folder":
        root.mkdir()
    elif what == "file":
        root.write_bytes(b"no archive")
    with pytest.raises(NotATree, match=error):
        open_tree(str(root))
