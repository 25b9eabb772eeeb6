"""``allranks fabric``: a table for people, one object for programs, and one line for whatever is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Allranks
from tests.fabric import trees


def test_the_object_has_its_fixed_keys(allranks: Allranks, tmp_path: Path) -> None:
    trees.macvlan_pod(tmp_path / "pod")
    said = allranks("fabric", "--root", str(tmp_path / "pod"), "--nccl", "2.18.5", "-o", "json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert list(found) == ["devices", "nccl", "set", "leave", "findings"]
    assert list(found["devices"][0]) == [
        "name", "port", "link_layer", "state", "rate_gbps", "netdev", "numa", "usable", "why", "gids",
    ]  # fmt: skip
    assert list(found["devices"][0]["gids"][0]) == ["index", "gid", "version", "family", "netdev"]
    assert found["nccl"][0] == {
        "version": "2.18.5", "devices": [{"name": "mlx5_0", "port": 1, "gid_index": 0}],
        "why": "its default: index 0, on every device",
    }  # fmt: skip
    assert found["set"] == {"NCCL_IB_GID_INDEX": "7"}
    assert {"variable", "why"} == set(found["leave"][0])


def test_people_see_devices_gids_netdevs_choices_and_the_decision(allranks: Allranks, tmp_path: Path) -> None:
    trees.ipv6_only(tmp_path / "host")
    said = allranks("fabric", "--root", str(tmp_path / "host"), "--nccl", "2.21")
    assert said.code == 0, said.err
    for line in (
        "fabric: RoCE",
        "bnxt_re0:1  3      fd93:16d3:59b6::7         RoCE v2  ipv6        rdma0   yes",
        "2.21.5 to 2.30.7  bnxt_re0:1 0, bnxt_re1:1 0",
        "for NCCL 2.21 allranks would set",
        "  NCCL_IB_ADDR_FAMILY=AF_INET6",
    ):
        assert line in said.out, said.out


def test_a_saved_tree_can_be_looked_at_elsewhere(allranks: Allranks, tmp_path: Path) -> None:
    trees.azure_h200(tmp_path / "host")
    target = str(tmp_path / "tree.tar.gz")
    saved = allranks("fabric", "--root", str(tmp_path / "host"), "--save", target)
    assert (saved.code, f"allranks fabric --root {target}" in saved.out) == (0, True)
    there, here = (allranks("fabric", "--root", root, "-o", "json").out for root in (str(tmp_path / "host"), target))
    assert there == here


def test_this_machine_can_be_looked_at_and_saved(allranks: Allranks, tmp_path: Path) -> None:
    said = allranks("fabric", "-o", "json")
    assert said.code == 0, said.err
    assert len(json.loads(said.out)["nccl"]) >= 13
    target = str(tmp_path / "own.tar.gz")
    assert allranks("fabric", "--save", target).code == 0
    again = json.loads(allranks("fabric", "--root", target, "-o", "json").out)
    assert again["devices"] == json.loads(said.out)["devices"]


@pytest.mark.parametrize(
    ("options", "code", "error"),
    [
        (["--root", "nowhere"], 2, "--root: nowhere does not exist; a tree is a folder, or"),
        (["--root", "."], 2, "--root: . has no sys/class; a tree holds sys/"),
        (["--root", "file"], 2, "--root: file cannot be read as a tar file"),
        (["--root", "tree", "--nccl", "2.17.1"], 2, "allowed: 2.18.1 and newer, such as 2.21.5"),
        (["--root", "tree", "--nccl", "new"], 2, "--nccl: 'new' is no known version"),
        (["--root", "tree", "--save", "nowhere/t.tar.gz"], 2, "--save: cannot write nowhere/t.tar.gz: No such file"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    allranks: Allranks, tmp_path: Path, options: list[str], code: int, error: str
) -> None:
    trees.roce_host(tmp_path / "tree")
    (tmp_path / "file").write_text("no tree")
    said = allranks("fabric", *options)
    assert (said.code, said.out, said.err.count("\n")) == (code, "", 1)
    assert error in said.err
