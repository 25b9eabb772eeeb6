"""What NCCL chooses by itself on fabrics that were seen, by version, and what that leaves to be set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from allranks.fabric.decide import Decision
from allranks.fabric.nccl import HcaList
from allranks.fabric.report import Report, look
from allranks.fabric.settings import Settings
from allranks.fabric.tree import open_tree
from allranks.fabric.version import Version, parse_version
from tests.fabric import trees
from tests.fabric.trees import LINK_LOCAL, TreeBuilder, gid, pairs

Build = Callable[[Path], TreeBuilder]


def version(text: str) -> Version:
    parsed = parse_version(text)
    assert parsed
    return parsed


def report(root: Path, nccl: str = "2.27.7", rdma: str = "auto") -> Report:
    return look(open_tree(str(root)), {}, "", version(nccl), rdma)


def decided(root: Path, nccl: str = "2.27.7", rdma: str = "auto") -> Decision:
    return report(root, nccl, rdma).decision


def chosen(root: Path, nccl: str) -> list[tuple[str, int | None]]:
    """Devices and indexes that NCCL takes with what is set already; None where it ends with an error."""
    choice = next(one for one in report(root, nccl).choices if one.version == version(nccl))
    return [(one["name"], one["gid_index"]) for one in choice.to_json()["devices"]]


ERROR = None


@pytest.mark.parametrize(
    ("build", "old", "middle", "new"),
    [
        (trees.roce_host, 0, 3, 3),
        (trees.roce_bond, 0, 3, 3),
        (trees.macvlan_pod, 0, 7, 7),
        (lambda root: trees.macvlan_pod(root, 6), 0, 9, 9),
        (trees.soft_roce, 0, 3, 3),
        (trees.pod_with_foreign_addresses, 0, ERROR, 9),
        (lambda root: trees.ipv6_only(root, 1), 0, 0, 0),
        (trees.omni_path, 0, 0, 0),
    ],
)
def test_the_index_is_0_before_2_21_and_the_first_ipv4_address_of_roce_v2_after(
    tmp_path: Path, build: Build, old: int, middle: int | None, new: int
) -> None:
    build(tmp_path)
    for nccl, index in {"2.18.5": old, "2.20.5": old, "2.21.5": middle, "2.25.1": middle, "2.26.2": new}.items():
        assert [found for _, found in chosen(tmp_path, nccl)] == [index], nccl


def test_ipv4_before_link_local_is_found_as_well(tmp_path: Path) -> None:
    tree = TreeBuilder(tmp_path).netdev("net1", "172.18.0.3")
    tree.device("mlx5_0", pairs(6, "172.18.0.3", LINK_LOCAL, netdev="net1"))
    assert chosen(tmp_path, "2.21.5") == [("mlx5_0", 7)]


def test_a_second_address_is_taken_only_when_a_range_leaves_the_first_out(tmp_path: Path) -> None:
    tree = TreeBuilder(tmp_path).netdev("net1", "10.1.0.3", "10.2.0.3")
    tree.device("mlx5_0", pairs(0, LINK_LOCAL, "10.1.0.3", "10.2.0.3", netdev="net1"))
    assert chosen(tmp_path, "2.27.7") == [("mlx5_0", 3)]
    notes = [finding.fix for finding in decided(tmp_path).findings if "2 RoCE v2 addresses" in finding.what]
    assert notes == ["NCCL_IB_ADDR_RANGE=NETWORK/BITS in the spec's env chooses another, the same on all nodes"]
    tree.environment(NCCL_IB_ADDR_RANGE="10.2.0.0/16")
    assert chosen(tmp_path, "2.27.7") == [("mlx5_0", 5)]


def test_an_empty_slot_counts_as_ipv6_and_misleads_nccl_before_2_26(tmp_path: Path) -> None:
    tree = TreeBuilder(tmp_path).netdev("net1", "10.0.0.3", "fd02::3")
    tree.device("mlx5_0", {**pairs(0, "10.0.0.3", netdev="net1"), **pairs(4, "fd02::3", netdev="net1")})
    tree.environment(NCCL_IB_ADDR_FAMILY="AF_INET6")
    assert chosen(tmp_path, "2.25.1") == [("mlx5_0", ERROR)]
    assert chosen(tmp_path, "2.26.2") == [("mlx5_0", 5)]
    tree.environment(NCCL_IB_ADDR_FAMILY="AF_INET6", NCCL_IB_ADDR_RANGE="fd02::/16")
    assert chosen(tmp_path, "2.25.1") == [("mlx5_0", 5)]


@pytest.mark.parametrize(
    ("build", "nccl", "set_"),
    [
        (trees.roce_host, "2.27.7", {}),
        (trees.roce_host, "2.18.5", {"NCCL_IB_GID_INDEX": "3"}),
        (trees.roce_bond, "2.20.5", {"NCCL_IB_GID_INDEX": "3"}),
        (trees.macvlan_pod, "2.21.5", {}),
        (trees.macvlan_pod, "2.18.5", {"NCCL_IB_GID_INDEX": "7"}),
        (lambda root: trees.macvlan_pod(root, nics=8), "2.18.5", {"NCCL_IB_GID_INDEX": "7"}),
        (trees.pod_with_foreign_addresses, "2.27.7", {}),
        (trees.pod_with_foreign_addresses, "2.23.4", {"NCCL_IB_ADDR_RANGE": "172.18.128.3/32"}),
        (trees.ipv6_only, "2.27.7", {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}),
        (trees.ipv6_only, "2.18.5", {"NCCL_IB_GID_INDEX": "3"}),
        (trees.pod_without_network, "2.27.7", {"NCCL_IB_DISABLE": "1"}),
        (trees.azure_h200, "2.27.7", {"NCCL_IB_HCA": "=" + ",".join(f"mlx5_ib{n}" for n in range(8))}),
        (trees.azure_h200, "2.18.5", {"NCCL_IB_HCA": "=" + ",".join(f"mlx5_ib{n}" for n in range(8))}),
        (trees.mixed_box, "2.27.7", {"NCCL_IB_HCA": "=" + ",".join(f"mlx5_ib{n}" for n in range(8))}),
        (trees.omni_path, "2.18.5", {}),
        (trees.efa, "2.27.7", {}),
        (lambda root: trees.gke(root, 4), "2.27.7", {}),
        (lambda root: trees.gke(root, 8), "2.27.7", {}),
        (trees.gke_gib, "2.18.5", {}),
        (TreeBuilder, "2.27.7", {}),
    ],
)
def test_the_least_that_fixes_it_is_set(tmp_path: Path, build: Build, nccl: str, set_: dict[str, str]) -> None:
    build(tmp_path)
    assert decided(tmp_path, nccl).set == set_


@pytest.mark.parametrize(
    ("build", "kind", "closed"),
    [
        (trees.roce_host, "RoCE", "IB"),
        (trees.azure_h200, "InfiniBand", "IB"),
        (trees.efa, "EFA", "AWS Libfabric"),
        (lambda root: trees.gke(root, 4), "GKE TCPX", None),
        (lambda root: trees.gke(root, 8), "GKE TCPXO", None),
        (trees.gke_gib, "GKE gIB", "gIB"),
        (lambda root: TreeBuilder(root).netdev("eth0"), "Ethernet", "IB"),
        (TreeBuilder, "none", "IB"),
        (trees.pod_without_network, "RoCE", "IB"),
    ],
)
def test_required_makes_nccl_fail_rather_than_take_tcp(
    tmp_path: Path, build: Build, kind: str, closed: str | None
) -> None:
    build(tmp_path)
    found = report(tmp_path, rdma="required")
    assert found.host.kind == kind
    assert found.decision.set.get("NCCL_NET") == closed
    assert "NCCL_IB_DISABLE" not in found.decision.set


def test_required_without_a_usable_device_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    trees.pod_without_network(tmp_path)
    errors = [one for one in decided(tmp_path, rdma="required").findings if one.level == "error"]
    assert [one.what for one in errors] == ["it is required, but no RDMA device can be used here (RoCE)"]
    assert "network.annotations" in errors[0].fix


def test_off_forbids_plugins_too(tmp_path: Path) -> None:
    trees.roce_host(tmp_path)
    assert decided(tmp_path, rdma="off").set == {"NCCL_NET": "Socket"}


@pytest.mark.parametrize("rdma", ["required", "off"])
def test_what_contradicts_the_spec_is_kept_and_told(tmp_path: Path, rdma: str) -> None:
    trees.roce_host(tmp_path).environment(NCCL_NET="Socket" if rdma == "required" else "IB")
    decision = decided(tmp_path, rdma=rdma)
    assert decision.set == {}
    assert any(one.level == "error" and one.where == "network.rdma" for one in decision.findings)


def test_the_users_own_settings_are_kept_shown_and_judged(tmp_path: Path) -> None:
    trees.macvlan_pod(tmp_path).environment(NCCL_IB_GID_INDEX="5")
    decision = decided(tmp_path)
    assert decision.set == {}
    assert ("NCCL_IB_GID_INDEX", "the environment sets it to '5': kept") in decision.leave
    wrong = next(one for one in decision.findings if one.level == "error")
    assert (wrong.where, wrong.what) == ("mlx5_0:1", "NCCL will use GID index 5; right is 7 (172.18.128.3)")
    assert wrong.fix == "the environment sets NCCL_IB_GID_INDEX=5; unset it"


def test_nccl_conf_counts_after_the_environment_and_its_place_moves_with_2_23(tmp_path: Path) -> None:
    tree = trees.macvlan_pod(tmp_path).environment(NCCL_CONF_FILE="/cfg/nccl.conf")
    tree.write("cfg/nccl.conf", "NCCL_IB_GID_INDEX=7\n")
    tree.write("root/.nccl.conf", "NCCL_IB_GID_INDEX=6\n")
    tree.write("etc/nccl.conf", "# ours\nNCCL_IB_GID_INDEX=5\nNCCL_IB_TC=106\n")
    assert chosen(tmp_path, "2.27.7") == [("mlx5_0", 7)]
    assert chosen(tmp_path, "2.22.3") == [("mlx5_0", 6)]
    assert ("NCCL_IB_TC", "/etc/nccl.conf sets it to '106': kept") in decided(tmp_path).leave
    tree.environment(NCCL_IB_GID_INDEX="4")
    assert chosen(tmp_path, "2.27.7") == [("mlx5_0", 4)]


SEVENTEEN = [f"mlx5_{number}" for number in range(17)]


def seventeen(root: Path) -> TreeBuilder:
    """Devices whose names are prefixes of each other; mlx5_1 is the one that is no good for training."""
    tree = TreeBuilder(root)
    for number, name in enumerate(SEVENTEEN):
        own, rate = f"10.3.{number}.2", "25 Gb/sec (1X EDR)" if name == "mlx5_1" else "400 Gb/sec (4X NDR)"
        tree.netdev(f"net{number}", own).device(name, pairs(4, LINK_LOCAL, own, netdev=f"net{number}"), rate=rate)
    return tree


def test_a_list_of_devices_names_each_exactly(tmp_path: Path) -> None:
    tree = seventeen(tmp_path)
    hcas = decided(tmp_path).set["NCCL_IB_HCA"]
    assert hcas == "=" + ",".join(name for name in SEVENTEEN if name != "mlx5_1")
    tree.environment(NCCL_IB_HCA=hcas)
    assert [name for name, _ in chosen(tmp_path, "2.27.7")] == [name for name in SEVENTEEN if name != "mlx5_1"]


def test_a_name_without_equals_is_a_prefix_and_this_is_told(tmp_path: Path) -> None:
    tree = seventeen(tmp_path)
    tree.environment(NCCL_IB_HCA="^mlx5_1")
    assert len(chosen(tmp_path, "2.27.7")) == 9
    told = next(one for one in decided(tmp_path).findings if one.where == "NCCL_IB_HCA")
    assert told.what == "mlx5_1 is a prefix, and means " + ", ".join(f"mlx5_{n}" for n in range(10, 17)) + " too"
    assert told.fix == "begin the list with = (after ^, if any)"


def test_before_2_18_5_nccl_takes_sixteen_devices(tmp_path: Path) -> None:
    seventeen(tmp_path)
    assert (len(chosen(tmp_path, "2.18.3")), len(chosen(tmp_path, "2.18.5"))) == (16, 17)


def test_a_list_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    trees.roce_host(tmp_path).environment(NCCL_IB_HCA="=mlx5_7")
    decision = decided(tmp_path)
    assert "matches no usable device: NCCL takes TCP without a word" in decision.findings[-1].what
    assert decision.choice.why == "no device matches NCCL_IB_HCA: TCP, without a word"


@pytest.mark.parametrize(
    ("text", "takes"),
    [
        ("", {"mlx5_1:1", "mlx5_1:2", "mlx5_10:1"}),
        ("^", set()),
        ("mlx5_1", {"mlx5_1:1", "mlx5_1:2", "mlx5_10:1"}),
        ("=mlx5_1", {"mlx5_1:1", "mlx5_1:2"}),
        ("=mlx5_1:2", {"mlx5_1:2"}),
        ("mlx5_1:1", {"mlx5_1:1", "mlx5_10:1"}),
        ("^=mlx5_1", {"mlx5_10:1"}),
        ("^=mlx5_1,^=mlx5_10", {"mlx5_10:1"}),
        ("=mlx5_1:0", set()),
        ("=mlx5_1:2:0:1", {"mlx5_1:2"}),
        ("=mlx5_1::0", {"mlx5_1:1", "mlx5_1:2"}),
        ("=mlx5_1:", {"mlx5_1:1", "mlx5_1:2"}),
    ],
)
def test_a_list_of_devices_means_what_nccl_makes_of_it(tmp_path: Path, text: str, takes: set[str]) -> None:
    slots = pairs(0, "10.0.0.1", netdev="lo")
    TreeBuilder(tmp_path).device("mlx5_1", slots, ports=2).device("mlx5_10", slots)
    hcas = HcaList(text)
    assert {port.name for port in report(tmp_path).host.ports if hcas.takes(port)} == takes


def test_an_empty_port_means_none_before_2_30_7(tmp_path: Path) -> None:
    trees.roce_host(tmp_path).environment(NCCL_IB_HCA="mlx5_0:")
    assert chosen(tmp_path, "2.29.7") == []
    assert chosen(tmp_path, "2.30.7") == [("mlx5_0", 3)]


@pytest.mark.parametrize("allowed", ["10.0.0.0", "fd02::/16", "10.0.0.0/33", "x/8"])
def test_a_range_that_nccl_ignores_is_an_error(tmp_path: Path, allowed: str) -> None:
    trees.roce_host(tmp_path).environment(NCCL_IB_ADDR_RANGE=allowed)
    assert chosen(tmp_path, "2.27.7") == [("mlx5_0", 3)]
    assert any((one.level, one.where) == ("error", "NCCL_IB_ADDR_RANGE") for one in decided(tmp_path).findings)


@pytest.mark.parametrize(
    ("text", "number"), [("3", 3), ("", 9), ("x", 0), ("08", 0), ("017", 15), ("0x1f", 31), ("5\n7", 5), (" -1", -1)]
)
def test_numbers_are_read_as_strtoll_reads_them(text: str, number: int) -> None:
    assert Settings({"N": text}).number("N", 9) == number


def test_devices_for_which_old_nccl_has_no_common_index_are_left_out_aloud(tmp_path: Path) -> None:
    tree = TreeBuilder(tmp_path)
    for number, first in enumerate((0, 0, 4)):
        own = f"10.3.{number}.2"
        tree.netdev(f"net{number}", own)
        tree.device(f"mlx5_{number}", pairs(first, LINK_LOCAL, own, netdev=f"net{number}"))
    decision = decided(tmp_path, "2.20.5")
    assert decision.set == {"NCCL_IB_HCA": "=mlx5_0,mlx5_1", "NCCL_IB_GID_INDEX": "3"}
    left = next(one for one in decision.findings if one.level == "warning")
    assert (left.where, left.fix) == ("mlx5_2:1", "NCCL 2.21 or newer chooses an index for each")
    assert decided(tmp_path, "2.21.5").set == {}


def test_devices_are_in_pci_order_from_2_29_7(tmp_path: Path) -> None:
    tree = TreeBuilder(tmp_path)
    tree.device("mlx5_0", {}, link="InfiniBand", pci="0000:9a:00.0")
    tree.device("mlx5_1", {}, link="InfiniBand", pci="0000:1a:00.0")
    assert [name for name, _ in chosen(tmp_path, "2.29.2")] == ["mlx5_0", "mlx5_1"]
    assert [name for name, _ in chosen(tmp_path, "2.29.7")] == ["mlx5_1", "mlx5_0"]


def test_an_flid_index_is_used_on_infiniband_from_2_22(tmp_path: Path) -> None:
    slots = {
        0: (gid("fe80::1"), "IB/RoCE v1", None),
        1: ("fec0:0000:0007:0001:0000:0000:0000:0001", "IB/RoCE v1", None),
    }
    TreeBuilder(tmp_path).device("mlx5_0", slots, link="InfiniBand")
    assert chosen(tmp_path, "2.21.5") == [("mlx5_0", 0)]
    assert chosen(tmp_path, "2.22.3") == [("mlx5_0", 1)]


def test_two_pods_get_each_its_own_index_and_newer_nccl_none(tmp_path: Path) -> None:
    trees.odd_pod(tmp_path / "a", 5, "172.18.128.3")
    trees.odd_pod(tmp_path / "b", 9, "172.18.128.4")
    for nccl in ("2.21.5", "2.23.4", "2.26.2", "2.30.7"):
        assert decided(tmp_path / "a", nccl).set == decided(tmp_path / "b", nccl).set == {}, nccl
    assert decided(tmp_path / "a", "2.18.5").set == {"NCCL_IB_GID_INDEX": "5"}
    assert decided(tmp_path / "b", "2.18.5").set == {"NCCL_IB_GID_INDEX": "9"}
