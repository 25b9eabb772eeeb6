"""Settings with which NCCL passes RDMA by, or finds no way at all."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.rule import ERROR, EVERY, PODS, WARNING, Found, Rule, Subject
from allranks.manifest.field import Field
from allranks.manifest.gang import NETWORKS, placed_words

IN_COMMAND = re.compile(r"\b((?:NCCL|GLOO)_[A-Z0-9_]+)=(\S*)")


def settings(subject: Subject) -> Iterator[tuple[str, str, Field]]:
    """Each NCCL and GLOO variable with its value: of the containers, and of what their commands export."""
    for container in subject.containers:
        for entry in container["env"].items:
            if entry["name"].text.startswith(("NCCL_", "GLOO_")):
                yield entry["name"].text, entry["value"].text, entry
        for word in placed_words(container):
            for name, value in IN_COMMAND.findall(word.text):
                yield name, value.strip("\"';,"), word


def _off(name: str, value: str) -> bool:
    return (name == "NCCL_IB_DISABLE" and value not in ("", "0")) or (name == "NCCL_NET" and value.lower() == "socket")


def rdma_switched_off(subject: Subject) -> Iterator[Found]:
    """NCCL_IB_DISABLE=1 or NCCL_NET=Socket."""
    for name, value, at in settings(subject):
        if _off(name, value) and not any(role.has_rdma for role in subject.roles):
            yield Found(at, f"{name}={value}", f"remove {name}; NCCL takes RDMA where it works, and TCP else")


def rdma_asked_for_and_off(subject: Subject) -> Iterator[Found]:
    """A device for RDMA beside a setting that forbids it."""
    for name, value, at in settings(subject):
        if _off(name, value) and any(role.has_rdma for role in subject.roles):
            yield Found(at, f"{name}={value} beside an RDMA device", f"remove {name}, or the device")


def interface_lo(subject: Subject) -> Iterator[Found]:
    """The loopback interface between nodes."""
    for name, value, at in settings(subject):
        if name.endswith("_SOCKET_IFNAME") and value.lstrip("=").split(",")[0] == "lo":
            yield Found(at, f"{name}={value}", f"remove {name}, or write the pod network's interface (eth0)")


def gid_index_fixed(subject: Subject) -> Iterator[Found]:
    """One GID index for all nodes."""
    for name, value, at in settings(subject):
        if name == "NCCL_IB_GID_INDEX" and value not in ("", "-1"):
            yield Found(
                at, f"{name}={value} for every node", "remove it: NCCL from 2.21 on finds the index on each node"
            )


def network_without_device(subject: Subject) -> Iterator[Found]:
    """A second network, and no device that carries RDMA on it."""
    for role in subject.nodes:
        networks = role.template.at("metadata", "annotations", NETWORKS)
        if networks and role.gpus and not role.has_rdma:
            fix = "ask for the device that this network belongs to, such as limits: {rdma/rdma: 1}"
            yield Found(networks, f"{role.name}: the network {networks.text[:60]} without an RDMA device", fix)


def memory_not_locked(subject: Subject) -> Iterator[Found]:
    """RDMA without the right to lock memory."""
    for role in subject.nodes:
        context = role.container["securityContext"]
        added = [one.text for one in context.at("capabilities", "add").items]
        if role.has_rdma and "IPC_LOCK" not in added and not context["privileged"].is_true:
            fix = "write securityContext: {capabilities: {add: [IPC_LOCK]}}"
            yield Found(context, f"{role.name}: an RDMA device without IPC_LOCK", fix)


RULES = (
    Rule("rdma-switched-off", WARNING, EVERY, rdma_switched_off,
        "NCCL uses TCP, at a tenth of the speed, and does not say so."),
    Rule("rdma-asked-for-and-off", ERROR, EVERY, rdma_asked_for_and_off,
        "The device is held and never used; NCCL uses TCP."),
    Rule("interface-lo", ERROR, EVERY, interface_lo,
        "Each node talks to itself alone: ranks on other nodes are never reached."),
    Rule("gid-index-fixed", WARNING, EVERY, gid_index_fixed,
        "The right index differs from pod to pod; with a wrong one NCCL hangs or dies with 'Connection timed "
        "out'."),
    Rule("network-without-device", WARNING, PODS, network_without_device,
        "Without the device NCCL sees no RDMA on that network and uses TCP."),
    Rule("memory-not-locked", WARNING, PODS, memory_not_locked,
        "Where the container runtime limits locked memory, registering buffers fails with 'Cannot allocate "
        "memory'."),
)  # fmt: skip
