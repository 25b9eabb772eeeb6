"""Whatever a node's table looks like: what is set makes NCCL choose right by the model, and no more is set."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allranks.fabric.decide import decide
from allranks.fabric.devices import Host, Port
from allranks.fabric.gid import Gid
from allranks.fabric.nccl import RELEASES, choose
from allranks.fabric.report import look
from allranks.fabric.right import best_ports, right_indexes
from allranks.fabric.settings import Settings
from allranks.fabric.tree import open_tree
from tests.fabric.trees import gid

OTHERS = "its type and netdev cannot be read"


@st.composite
def slots(draw: st.DrawFn, index: int) -> Gid:
    """A slot: empty, own or another's, IPv4, IPv6 or link-local, v1, v2 or unreadable."""
    kind = draw(st.sampled_from(["empty", "ipv4", "ipv6", "link-local"]))
    low = draw(st.integers(1, 0xFFFF))
    prefix = {"empty": 0, "ipv4": 0xFFFF << 32 | 0x0A000000, "ipv6": 0xFD << 120, "link-local": 0xFE80 << 112}
    if kind == "empty":
        return Gid(index, 0)
    if draw(st.booleans()):
        return Gid(index, prefix[kind] | low, None, None, OTHERS)
    return Gid(index, prefix[kind] | low, draw(st.sampled_from(["RoCE v1", "RoCE v2"])), "net1")


@st.composite
def ports(draw: st.DrawFn, number: int) -> Port:
    """A port as it is read: whatever its table, it works where it has a GID of its own."""
    gids = tuple(draw(slots(index)) for index in range(draw(st.integers(1, 10))))
    kept = tuple(slot for slot in gids if slot.number or slot.index == 0)
    link = draw(st.sampled_from(["Ethernet", "Ethernet", "Ethernet", "InfiniBand", "Unknown"]))
    state = draw(st.sampled_from(["ACTIVE", "ACTIVE", "ACTIVE", "DOWN"]))
    own = link == "InfiniBand" or any(slot.roce and not slot.foreign for slot in kept)
    works = state == "ACTIVE" and link != "Unknown" and own
    rate = draw(st.sampled_from([25.0, 100.0, 400.0]))
    return Port(
        f"mlx5_{number}", 1, link, state, rate, "net1", 0, "", "0x15b3", number, len(gids), kept,
        draw(st.sampled_from([True, True, works])), "" if works else "it does not work",
    )  # fmt: skip


@st.composite
def hosts(draw: st.DrawFn) -> Host:
    numbers = draw(st.sampled_from([(0,), (1, 10), (0, 1, 10, 11), tuple(range(17))]))
    return Host(tuple(draw(ports(number)) for number in numbers), (), None, False, True, "RoCE", ())


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(hosts(), st.sampled_from(RELEASES))
def test_what_is_set_makes_nccl_right_and_nothing_is_set_where_it_is(host: Host, version: tuple[int, ...]) -> None:
    wanted = set(best_ports([port for port in host.ports if not port.why])[0])
    nothing = Settings()

    def is_right(given: Settings, wanted: set[Port]) -> bool:
        chosen = choose(host, version, given).chosen
        indexes = all(not one.error and one.gid_index in right_indexes(one.port) for one in chosen)
        return indexes and {one.port for one in chosen} == wanted

    decision = decide(host, version, nothing)
    set_ = nothing.with_(decision.set)
    if not wanted:
        assert decision.set in ({}, {"NCCL_IB_DISABLE": "1"})
        assert not choose(host, version, set_).chosen
    elif is_right(nothing, wanted):
        assert decision.set == {}
    elif decision.set:
        taken = {one.port for one in choose(host, version, set_).chosen}
        assert taken
        assert taken <= wanted
        assert is_right(set_, taken)
        for name in decision.set:
            less = nothing.with_({key: value for key, value in decision.set.items() if key != name})
            assert not is_right(less, taken), f"{name} is not needed"
    else:
        assert any(finding.level == "error" for finding in decision.findings)
    if version >= (2, 21):
        assert not ({"NCCL_IB_ADDR_RANGE", "NCCL_IB_GID_INDEX"} <= set(decision.set))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.sampled_from([
            "link_layer", "state", "rate", "gids/0", "gids/x", "gids/3", "gid_attrs/types/0", "gid_attrs/types/3",
            "gid_attrs/ndevs/3", "../../device/uevent", "../../device/numa_node", "../../../../net/e/operstate",
            "../../../../net/e/ifindex", "../../../../net/e/speed", "../../../../../../proc/net/fib_trie",
            "../../../../../../proc/net/if_inet6", "../../../../../../proc/net/route",
            "../../../../../../proc/self/limits", "../../../../../../proc/self/status",
            "../../../../../../proc/self/environ", "../../../../../../etc/nccl.conf",
            "../../../../infiniband_verbs/uverbs0/ibdev",
        ]),
        st.one_of(
            st.binary(max_size=60),
            st.sampled_from([b"4: ACTIVE\n", b"Ethernet\n", gid("10.0.0.1").encode(), b"RoCE v2\n"]),
        ),
    )
)  # fmt: skip
def test_garbage_in_any_file_is_survived(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        port = Path(folder) / "sys/class/infiniband/mlx5_0/ports/1"
        port.mkdir(parents=True)
        for name, content in files.items():
            path = Path(str(port / name)).resolve()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        look(open_tree(folder), {}).to_json()
