"""A saved tree says the same as the node it was saved on, and keeps nothing that is not asked for."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from allranks.fabric.report import look
from allranks.fabric.save import save
from allranks.fabric.settings import saved_environment
from allranks.fabric.tree import NotATree, open_tree
from tests.fabric import trees
from tests.fabric.trees import TreeBuilder


@pytest.mark.parametrize("build", [trees.macvlan_pod, trees.azure_h200, trees.efa, trees.gke_gib, TreeBuilder])
def test_a_saved_tree_says_the_same_packed_and_unpacked(tmp_path: Path, build: Callable[[Path], TreeBuilder]) -> None:
    build(tmp_path / "node").write("etc/nccl.conf", "NCCL_IB_TC=106")
    tree = open_tree(str(tmp_path / "node"))
    packed, unpacked = tmp_path / "tree.tar.gz", tmp_path / "unpacked"
    save(tree, str(packed), saved_environment(tree))
    unpacked.mkdir()
    subprocess.run(["tar", "-xzf", packed, "-C", unpacked], check=True)
    said = look(tree, {}).to_json()
    assert look(open_tree(str(packed)), {}).to_json() == said
    assert look(open_tree(str(unpacked)), {}).to_json() == said
    assert packed.stat().st_size < 64 * 1024


def test_nothing_is_kept_that_is_not_asked_for(tmp_path: Path) -> None:
    builder = trees.roce_host(tmp_path / "node").environment(HF_TOKEN="hf-secret", NCCL_DEBUG="INFO")
    builder.write("etc/nccl.conf", "NCCL_IB_TC=1\nPASSWORD=secret")
    builder.write("proc/self/status", "Uid:\tsecret\nCapEff:\t0000000000000000")
    builder.write("sys/class/infiniband/mlx5_0/device/uevent", "SECRET=secret\nPCI_SLOT_NAME=0000:10:00.0")
    tree = open_tree(str(builder.root))
    save(tree, str(tmp_path / "tree.tar.gz"), saved_environment(tree))
    with tarfile.open(tmp_path / "tree.tar.gz") as tar:
        kept = b"".join(file.read() for member in tar if (file := tar.extractfile(member)))
    assert b"secret" not in kept
    assert b"NCCL_DEBUG=INFO" in kept


def archive(path: Path, *members: tarfile.TarInfo) -> str:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"\0" * min(member.size, 1 << 20)))
    return str(path)


def member(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, link
    return info


def test_an_archive_is_read_without_unpacking_and_its_links_are_passed_over(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("4: ACTIVE")
    state = "sys/class/infiniband/mlx5_0/ports/1/state"
    path = archive(
        tmp_path / "t.tar.gz", member("./sys/class/net/lo/ifindex"), member(state, 0, tarfile.SYMTYPE, str(secret))
    )
    tree = open_tree(path)
    assert tree.names("sys/class/net") == ["lo"]
    assert tree.read(state) is None


def test_an_archive_that_leaves_itself_or_is_far_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotATree, match="a member outside of itself"):
        open_tree(archive(tmp_path / "a.tar.gz", member("sys/class/../../../etc/passwd")))
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as tar:
        for number in range(70):
            tar.addfile(member(f"sys/class/{number}", 1 << 20), io.BytesIO(b"\0" * (1 << 20)))
    with pytest.raises(NotATree, match="far larger"):
        open_tree(str(tmp_path / "b.tar.gz"))
    whole = (tmp_path / "b.tar.gz").read_bytes()
    (tmp_path / "c.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(NotATree):
        open_tree(str(tmp_path / "c.tar.gz"))
