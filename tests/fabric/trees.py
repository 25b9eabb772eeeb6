"""Builds trees as nodes have them: sysfs of RDMA devices and netdevs, /dev, /proc. What is unreadable is empty."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path

Slot = tuple[str, "str | None", "str | None"]
"""A GID, its type and its netdev; None is what the kernel refuses to tell."""

V1, V2 = "IB/RoCE v1", "RoCE v2"
EMPTY = "0000:" * 7 + "0000"
LINK_LOCAL = "fe80::ac0:ebff:feda:1cfb"


def gid(address: str) -> str:
    """An address as a slot of the table has it."""
    parsed = ipaddress.ip_address(address)
    number = int(parsed) | (0xFFFF << 32 if parsed.version == 4 else 0)
    digits = f"{number:032x}"
    return ":".join(digits[at : at + 4] for at in range(0, 32, 4))


def pairs(first: int, *addresses: str, netdev: str | None) -> dict[int, Slot]:
    """What each address yields: a v1 slot and a v2 slot, from index ``first`` on."""
    return {
        first + 2 * at + more: (gid(address), kind, netdev)
        for at, address in enumerate(addresses)
        for more, kind in enumerate((V1, V2))
    }


class TreeBuilder:
    """A tree in ``root``, with a loopback netdev and memory that may be locked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._verbs = self._netdevs = 0
        self.write("sys/class/net/bonding_masters", "")
        self.write("proc/self/limits", "Limit  Soft Limit\nMax locked memory         unlimited   unlimited  bytes")
        self.write("proc/self/status", "Name:\tpython\nCapEff:\t0000000000000000")
        self.write("proc/self/environ", "HOME=/root")
        self.write("dev/null", "")
        self._trie, self._table, self._routes = "", "", "Iface\tDestination\tGateway"
        self.netdev("lo", "127.0.0.1", state="unknown")

    def write(self, path: str, text: str) -> None:
        """A file; the empty text stands for one that the kernel refuses to read."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n" if text else "")

    def environment(self, **variables: str) -> TreeBuilder:
        self.write("proc/self/environ", "\0".join(f"{n}={v}" for n, v in {"HOME": "/root", **variables}.items()))
        return self

    def netdev(
        self, name: str, *addresses: str, state: str = "up", vendor: str = "", default: bool = False
    ) -> TreeBuilder:
        self._netdevs += 1
        self.write(f"sys/class/net/{name}/operstate", state)
        self.write(f"sys/class/net/{name}/ifindex", str(self._netdevs))
        self.write(f"sys/class/net/{name}/speed", "")  # IPoIB and lo: EINVAL
        if vendor:
            self.write(f"sys/class/net/{name}/device/vendor", vendor)
        if default:
            self._routes += f"\n{name}\t00000000\t0100000A"
        for address in addresses:
            parsed = ipaddress.ip_address(address)
            if parsed.version == 4:
                self._trie += f"           |-- {address}\n              /32 host LOCAL\n"
            else:
                self._table += f"{int(parsed):032x} 02 40 00 80 {name:>8}\n"
        self.write("proc/net/fib_trie", "Local:\n" + self._trie)
        self.write("proc/net/if_inet6", self._table)
        self.write("proc/net/route", self._routes)
        return self

    def device(
        self, name: str, slots: Mapping[int, Slot] | None = None, *, link: str = "Ethernet", state: str = "4: ACTIVE",
        rate: str = "100 Gb/sec (4X EDR)", table: int = 16, uverbs: bool = True, netdev: str = "", ports: int = 1,
        vendor: str = "0x15b3", pci: str = "",
    ) -> TreeBuilder:  # fmt: skip
        """A device whose ports are all alike."""
        folder, number = f"sys/class/infiniband/{name}", self._verbs
        self._verbs += 1
        self.write(f"{folder}/device/numa_node", str(number % 2))
        self.write(f"{folder}/device/vendor", vendor)
        self.write(
            f"{folder}/device/uevent", f"DRIVER=mlx5_core\nPCI_SLOT_NAME={pci or f'0000:{number + 16:02x}:00.0'}"
        )
        if netdev:
            self.write(f"{folder}/device/net/{netdev}/ifindex", "9")
        for port in range(1, ports + 1):
            at = f"{folder}/ports/{port}"
            for file, text in {"link_layer": link, "state": state, "rate": rate}.items():
                self.write(f"{at}/{file}", text)
            for index in range(table):
                one, kind, ndev = (slots or {}).get(index, (EMPTY, None, None))
                self.write(f"{at}/gids/{index}", one)
                self.write(f"{at}/gid_attrs/types/{index}", kind or "")
                self.write(f"{at}/gid_attrs/ndevs/{index}", ndev or "")
        self.write(f"sys/class/infiniband_verbs/uverbs{number}/ibdev", name)
        if uverbs:
            self.write(f"dev/infiniband/uverbs{number}", "")
        return self


# ---- fabrics that were seen, by the name of the place


def roce_host(root: Path) -> TreeBuilder:
    """A host: link-local v1 and v2, IPv4 v1 and v2 at 0 to 3 (NVIDIA/nccl#769)."""
    tree = TreeBuilder(root).netdev("ens3np0", "200.0.209.6", default=True)
    return tree.device("mlx5_0", pairs(0, LINK_LOCAL, "200.0.209.6", netdev="ens3np0"), netdev="ens3np0")


def roce_bond(root: Path) -> TreeBuilder:
    """A bond of two ports (NVIDIA/nccl#451)."""
    tree = TreeBuilder(root).netdev("bond0", "10.7.0.1", default=True)
    slots = pairs(0, LINK_LOCAL, "10.7.0.1", netdev="bond0")
    return tree.device("mlx5_bond_0", slots, rate="25 Gb/sec (1X EDR)", netdev="bond0", table=256)


def macvlan_pod(root: Path, first: int = 4, address: str = "172.18.128.3", nics: int = 1) -> TreeBuilder:
    """A pod that shares the host's HCAs: its own slots alone are filled (NVIDIA/nccl#1573)."""
    tree = TreeBuilder(root).netdev("eth0", "10.42.0.9", default=True)
    for nic in range(nics):
        own = str(ipaddress.ip_address(address) + 256 * nic)
        tree.netdev(f"net{nic + 1}", own)
        tree.device(f"mlx5_{nic}", pairs(first, LINK_LOCAL, own, netdev=f"net{nic + 1}"), netdev="ens3np0")
    return tree


def odd_pod(root: Path, index: int, address: str) -> TreeBuilder:
    """A pod whose only own GID for IPv4 and RoCE v2 is at that index; slots before it belong to other pods."""
    tree = TreeBuilder(root).netdev("eth0", "10.42.0.9", default=True).netdev("net1", address)
    slots: dict[int, Slot] = {0: (gid(LINK_LOCAL), None, None), 1: (gid("fe80::1"), None, None)}
    return tree.device("mlx5_bond_0", {**slots, index: (gid(address), V2, "net1")}, table=256)


def pod_with_foreign_addresses(root: Path) -> TreeBuilder:
    """Verbs shows another pod's IPv4 GIDs at 2 and 3, whose types the kernel refuses (NVIDIA/nccl#1538)."""
    tree = macvlan_pod(root, 6)
    for index in (2, 3):
        tree.write(f"sys/class/infiniband/mlx5_0/ports/1/gids/{index}", gid("172.18.128.77"))
    return tree


def ipv6_only(root: Path, nics: int = 2) -> TreeBuilder:
    """Unique local addresses alone, as on bnxt_re Thor-2 (uccl PR#803)."""
    tree = TreeBuilder(root).netdev("eth0", "10.0.0.4", default=True)
    for nic in range(nics):
        own = f"fd93:16d3:59b6:{nic}::7"
        tree.netdev(f"rdma{nic}", own).device(f"bnxt_re{nic}", pairs(0, LINK_LOCAL, own, netdev=f"rdma{nic}"))
    return tree


def pod_without_network(root: Path) -> TreeBuilder:
    """All HCAs of the host can be opened, and none has a GID of this pod (k8s-rdma-sriov-dev-plugin#30)."""
    tree = TreeBuilder(root).netdev("eth0", "10.42.0.9", default=True)
    return tree.device("mlx5_0", {3: (gid("10.1.1.1"), V2, "ens3np0")}).device("mlx5_1", {})


def azure_h200(root: Path) -> TreeBuilder:
    """Eight InfiniBand HCAs and one for accelerated networking (azurehpc-health-checks, nd96isr_h200_v5.conf)."""
    tree = TreeBuilder(root).netdev("eth0", "10.0.0.4", default=True)
    for number in range(8):
        slots: dict[int, Slot] = {0: ("fe80:0000:0000:0000:0015:5dff:fe33:ff0" + str(number), V1, None)}
        tree.device(f"mlx5_ib{number}", slots, link="InfiniBand", rate="400 Gb/sec (4X NDR)", table=8)
    slots = pairs(0, LINK_LOCAL, "10.0.0.4", netdev="eth0")
    return tree.device("mlx5_an0", slots, rate="100 Gb/sec (4X EDR)")


def mixed_box(root: Path) -> TreeBuilder:
    """An older card whose port is down beside the ones for training (DeepEP#60)."""
    tree = azure_h200(root)
    return tree.device("mlx5_12", {}, state="1: DOWN", rate="40 Gb/sec (4X QDR)")


def efa(root: Path) -> TreeBuilder:
    """Amazon's own: no link layer that NCCL knows, a GID that is no address."""
    tree = TreeBuilder(root).netdev("ens32", "10.0.1.2", default=True)
    for number in range(8):
        slots: dict[int, Slot] = {0: ("fe80:0000:0000:0000:0456:78ff:fe9a:bcd" + str(number), None, None)}
        tree.device(
            f"rdmap{80 + number}s0", slots, link="Unspecified", rate="400 Gb/sec (4X NDR)", table=1, vendor="0x1d0f"
        )
    return tree


def gke(root: Path, nics: int) -> TreeBuilder:
    """A3 High (4 NICs) and Mega (8): gVNICs and no RDMA device."""
    tree = TreeBuilder(root).netdev("eth0", "10.0.0.2", vendor="0x1ae0", default=True)
    for number in range(1, nics + 1):
        tree.netdev(f"eth{number}", f"10.{number}.0.2", vendor="0x1ae0")
    return tree


def gke_gib(root: Path) -> TreeBuilder:
    """A3 Ultra: RoCE, with Google's own plugin."""
    tree = macvlan_pod(root, nics=8)
    tree.write("usr/local/gib/scripts/set_nccl_env.sh", "# its own")
    return tree


def omni_path(root: Path) -> TreeBuilder:
    """No hca_type file, link layer InfiniBand (procfs fixtures)."""
    slots: dict[int, Slot] = {0: ("fe80:0000:0000:0000:0011:7501:0165:b0ac", V1, None)}
    return TreeBuilder(root).netdev("ib0", "10.9.0.1").device("hfi1_0", slots, link="InfiniBand", table=1, netdev="ib0")


def soft_roce(root: Path) -> TreeBuilder:
    """rdma_rxe on an ordinary netdev."""
    tree = TreeBuilder(root).netdev("eth0", "10.0.0.4", default=True)
    return tree.device("rxe0", pairs(0, LINK_LOCAL, "10.0.0.4", netdev="eth0"), rate="2.5 Gb/sec (1X SDR)")
