"""What is wrong with a host: each finding has its fix, and nothing is told of a sound one."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from allranks.fabric import doctor
from allranks.fabric.acs import acs_control
from allranks.fabric.agree import disagreements, merged, skews
from allranks.fabric.decide import Finding
from allranks.fabric.tree import open_tree
from tests.fabric import trees

SOUND = doctor.Limits(16 << 30, 16 << 30, 65536, {"/tmp": 1 << 40})
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19"


def gpu_host(root: Path, driver: str = OPEN) -> trees.TreeBuilder:
    """Two GPUs beside RoCE."""
    tree = trees.roce_host(root)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        tree.write(f"dev/{name}", "")
    tree.write("proc/driver/nvidia/version", driver)
    for number in range(2):
        tree.write(f"sys/bus/pci/devices/0000:0{number}:00.0/vendor", "0x10de")
        tree.write(f"sys/bus/pci/devices/0000:0{number}:00.0/class", "0x030200")
    return tree


def examined(root: Path, limits: doctor.Limits = SOUND, **needs: int) -> list[Finding]:
    needed = doctor.Needs(gpus=needs.get("gpus", 2), ranks=2)
    return doctor.examine(open_tree(str(root)), {}, "", needed, limits)


def test_nothing_is_wrong_with_a_sound_host(tmp_path: Path) -> None:
    gpu_host(tmp_path)
    assert examined(tmp_path) == []


def test_gpus_that_the_device_plugin_did_not_give_are_missed(tmp_path: Path) -> None:
    tree = gpu_host(tmp_path)
    (tree.root / "dev/nvidia1").unlink()
    (found,) = examined(tmp_path)
    assert (found.level, found.where, found.what) == ("error", "GPUs", "1 of 2 GPUs are here, 2 are on the PCI bus")
    assert "resources: {gpus: 2}" in found.fix


def test_gpus_without_a_driver_are_told(tmp_path: Path) -> None:
    tree = gpu_host(tmp_path)
    for name in ("dev/nvidia0", "dev/nvidia1", "proc/driver/nvidia/version"):
        (tree.root / name).unlink()
    (found,) = examined(tmp_path, gpus=0)
    assert "no driver is loaded" in found.what


def test_an_old_driver_without_peermem_has_no_gpudirect(tmp_path: Path) -> None:
    tree = gpu_host(tmp_path, CLOSED)
    assert [one.where for one in examined(tmp_path)] == ["GPUDirect RDMA"]
    tree.write("sys/module/nvidia_peermem/version", "535")
    assert examined(tmp_path) == []


def test_a_bridge_with_acs_is_named_with_the_command_that_ends_it(tmp_path: Path) -> None:
    tree = gpu_host(tmp_path)
    at = "sys/bus/pci/devices/0000:c0:01.0"
    tree.write(f"{at}/class", "0x060400")
    (tree.root / at / "config").write_bytes(config(0b0011101))
    (found,) = examined(tmp_path)
    assert (found.where, found.fix) == ("PCI ACS", "setpci -s 0000:c0:01.0 ECAP_ACS+0x6.w=0, or off in the BIOS")
    (tree.root / at / "config").write_bytes(config(0b1))
    assert examined(tmp_path) == []


def config(control: int) -> bytes:
    """Configuration space with AER first and ACS second."""
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, 0x0001 | 1 << 16 | 0x148 << 20)
    struct.pack_into("<IHH", space, 0x148, 0x000D | 1 << 16, 0, control)
    return bytes(space)


def test_acs_of_a_space_that_may_not_be_read_is_unknown() -> None:
    assert acs_control(bytes(64)) is None
    assert acs_control(struct.pack("<I", 0x100 << 20 | 1).rjust(0x104, b"\0")) is None


@pytest.mark.parametrize(
    ("limits", "where"),
    [
        (doctor.Limits(64 << 20, 64 << 20, 65536, {}), "/dev/shm"),
        (doctor.Limits(16 << 30, 1 << 20, 65536, {}), "/dev/shm"),
        (doctor.Limits(16 << 30, 16 << 30, 256, {}), "ulimit -n"),
        (doctor.Limits(16 << 30, 16 << 30, None, {"the run's folder": 5 << 20}), "the run's folder"),
    ],
)
def test_each_limit_is_told_with_its_why_and_its_fix(tmp_path: Path, limits: doctor.Limits, where: str) -> None:
    gpu_host(tmp_path)
    (found,) = examined(tmp_path, limits)
    assert (found.level, found.where) == ("warning", where)
    assert found.why
    assert found.fix


def test_this_processes_own_limits_are_read() -> None:
    found = doctor.Limits.read({"here": os.getcwd(), "nowhere": "/nowhere"})
    assert found.disks.keys() == {"here"}


def test_the_node_that_differs_from_the_many_is_named() -> None:
    torch = {"torch": "2.8.0", "MTU": "9000"}
    found = disagreements({0: torch, 1: {**torch, "torch": "2.7.1"}, 2: torch})
    assert [(one.level, one.where, one.nodes) for one in found] == [("error", "torch", (1,))]
    assert found[0].what == "it differs: 2.8.0 on nodes 0, 2, 2.7.1 on node 1"


def test_a_package_that_is_on_one_node_alone_is_told() -> None:
    (found,) = disagreements({0: {"deepspeed": "0.18"}, 1: {}})
    assert "none on node" in found.what


def test_a_clock_is_off_from_a_second_on() -> None:
    assert [one.nodes for one in skews({1: 0.9, 2: -3.0})] == [(2,)]


def test_the_same_finding_of_several_nodes_is_told_once_errors_first() -> None:
    small, bad = Finding("warning", "/dev/shm", "64 MiB"), Finding("error", "GPUs", "none")
    assert merged([small.of(0), small.of(2), bad.of(1)]) == [bad.of(1), small.of(0, 2)]
