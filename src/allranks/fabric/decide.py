"""The least that must be set on one node for NCCL to choose right there, and what is left alone, each with its why.

Nothing is set that NCCL gets right by itself, that somebody has set, or that is a site's own affair. Each remedy is
tried on the model of NCCL before it is proposed. What is decided holds for the node it was read on, never for another:
GID indexes differ from pod to pod (NVIDIA/nccl#718, multus-cni#1100).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from allranks.fabric.devices import Host, Port
from allranks.fabric.gid import Gid
from allranks.fabric.nccl import (
    CHOOSES_GIDS,
    Choice,
    HcaList,
    by_name,
    choose,
    socket_netdevs,
    wanted_family,
    wanted_range,
)
from allranks.fabric.right import (
    FAMILY,
    HCA,
    INDEX,
    RANGE,
    best_ports,
    common_indexes,
    exactly,
    having,
    ranges,
    right_gids,
    right_indexes,
)  # fmt: skip
from allranks.fabric.settings import Settings
from allranks.fabric.version import NEWEST, OLDEST, Version, shown

AUTO, REQUIRED, OFF = "auto", "required", "off"

CLOSED = {"EFA": "AWS Libfabric", "GKE gIB": "gIB", "InfiniBand": "IB", "RoCE": "IB", "Ethernet": "IB", "none": "IB"}
"""What NCCL_NET must be for NCCL to fail rather than take TCP (src/plugin/net.cc: a network that is named and not there
is an error). aws-ofi-nccl answers to this name in all of its versions (aws-ofi-nccl PR#530)."""


@dataclass(frozen=True)
class Finding:
    """Something somebody should know. ``level`` is error, warning or note; ``fix`` and ``why`` may be empty.

    ``nodes`` are those of a gang that it is about.
    """

    level: str
    where: str
    what: str
    fix: str = ""
    why: str = ""
    nodes: Tuple[int, ...] = ()

    def of(self, *nodes: int) -> Finding:
        """The same about these nodes."""
        return replace(self, nodes=nodes)

    def to_json(self) -> Dict[str, Any]:
        return {**vars(self), "nodes": list(self.nodes)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        """Raises KeyError, TypeError or ValueError for what is none; every text is cut."""
        texts = {name: str(data[name])[:500] for name in ("level", "where", "what", "fix", "why")}
        return cls(**texts, nodes=tuple(int(node) for node in data["nodes"][:1000]))


@dataclass(frozen=True)
class Decision:
    """``set`` holds variables for this node alone; ``leave`` says why others are left; ``choice`` is what follows."""

    version: Version
    set: Dict[str, str]
    leave: Tuple[Tuple[str, str], ...]
    findings: Tuple[Finding, ...]
    choice: Choice

    def to_json(self) -> Dict[str, Any]:
        return {
            "set": self.set,
            "leave": [{"variable": variable, "why": why} for variable, why in self.leave],
            "findings": [finding.to_json() for finding in self.findings],
        }


def decide(host: Host, found: Optional[Version], settings: Settings, rdma: str = AUTO) -> Decision:
    """Decide for one node. ``found`` is the NCCL that will be loaded, None where none is to be seen.

    ``settings`` is what is set already: it is kept. ``rdma`` is what the spec asks: auto, required or off.
    """
    version = found or NEWEST
    maker = _Maker(host, version, settings, rdma)
    maker.say_version(found)
    maker.say_nonsense()
    if rdma == OFF:
        maker.forbid()
    else:
        maker.allow()
        if rdma == REQUIRED:
            maker.require()
    return maker.decision()


class _Maker:
    """Gathers what is to be set and said."""

    def __init__(self, host: Host, version: Version, settings: Settings, rdma: str) -> None:
        self._host, self._version, self._settings, self._rdma = host, version, settings, rdma
        self._set: Dict[str, str] = {}
        self._leave: List[Tuple[str, str]] = []
        self._findings: List[Finding] = []

    def decision(self) -> Decision:
        for name in sorted(self._settings.values):
            value = self._settings.get(name)
            if value is not None and name != "NCCL_CONF_FILE":
                self._leave.append((name, f"{self._settings.source[name]} sets it to {value!r}: kept"))
        choice = choose(self._host, self._version, self._settings.with_(self._set))
        return Decision(self._version, self._set, tuple(self._leave), tuple(self._findings), choice)

    def _say(self, level: str, where: str, what: str, fix: str = "") -> None:
        self._findings.append(Finding(level, where, what, fix))

    def say_version(self, found: Optional[Version]) -> None:
        if found is None:
            self._say("note", "NCCL", f"none was found; decided for {shown(NEWEST)}", "allranks fabric --nccl VERSION")
        elif found > NEWEST and found[:2] != NEWEST[:2]:
            self._say("note", "NCCL", f"{shown(found)} is newer than what is known; taken to be as {shown(NEWEST)}")
        elif found < OLDEST:
            self._say("warning", "NCCL", f"{shown(found)} is older than what is known; taken to be as {shown(OLDEST)}")

    def say_nonsense(self) -> None:
        for text in self._host.refused:
            self._say("warning", "files", text)

    # ---- off and required

    def forbid(self) -> None:
        """NCCL_NET=Socket forbids plugins too; NCCL_IB_DISABLE would forbid NCCL's own RDMA alone."""
        given = self._settings.get("NCCL_NET")
        if given is None:
            self._set["NCCL_NET"] = "Socket"
        elif given.lower() != "socket":
            self._say("error", "network.rdma", f"it is off, but NCCL_NET is {given!r}", "leave one of the two out")

    def require(self) -> None:
        """NCCL must fail rather than take TCP; what somebody set against that is an error to tell."""
        if not any(not self._host.why_not(port) for port in self._host.ports) and self._host.kind in (
            "InfiniBand", "RoCE", "Ethernet", "none", "GKE gIB",
        ):  # fmt: skip
            self._say(
                "error", "network.rdma", f"it is required, but no RDMA device can be used here ({self._host.kind})",
                "give the pod its device and network (resources.extra, network.annotations), or rdma: auto",
            )  # fmt: skip
        closed, given = CLOSED.get(self._host.kind), self._settings.get("NCCL_NET")
        if self._settings.number("NCCL_IB_DISABLE", 0) and closed == "IB":
            source = self._settings.source["NCCL_IB_DISABLE"]
            self._say("error", "network.rdma", f"it is required, but {source} sets NCCL_IB_DISABLE", "unset it")
        if given is not None and given.lower() == "socket":
            self._say("error", "network.rdma", f"it is required, but NCCL_NET is {given!r}", "unset NCCL_NET")
        elif given is None and closed is not None:
            self._set["NCCL_NET"] = closed
        elif given is None:
            self._leave.append(("NCCL_NET", f"what {self._host.kind}'s plugin is called is its image's affair"))

    # ---- the choice of devices and GIDs

    def allow(self) -> None:
        """What makes NCCL choose right, where it would not."""
        kind = self._host.kind
        if kind == "EFA":
            self._leave.append(("NCCL_*", "EFA goes through aws-ofi-nccl, which sets what it needs by itself"))
            self._say("note", "EFA", "NCCL needs the plugin aws-ofi-nccl and libfabric in the image, else it takes TCP")
        elif kind.startswith("GKE TCP"):
            why = "the plugin's checker refuses variables that it does not expect"
            self._leave.append(("NCCL_*", f"{kind}'s own profile sets them: {why}"))
            self._say("note", kind, "NCCL takes TCP unless the plugin is in the image and its profile is sourced")
        elif kind == "GKE gIB":
            self._leave.append(("NCCL_*", "gIB's own profile sets them"))
            self._say("note", kind, "NCCL needs gIB's profile", "source /usr/local/gib/scripts/set_nccl_env.sh")
        elif self._host.ports:
            self._say_ports()
            self._say_settings()
            if not self._forced_elsewhere():
                self._set.update(self._remedy() if self._rdma == REQUIRED else self._remedy() or self._without())
        if not kind.startswith("GKE"):
            self._leave_sockets()

    def _forced_elsewhere(self) -> bool:
        net = self._settings.get("NCCL_NET")
        return bool(self._settings.number("NCCL_IB_DISABLE", 0)) or (net is not None and net.lower() != "ib")

    def _say_ports(self) -> None:
        for port in sorted(self._host.ports, key=by_name):
            if port.why and port.state == "ACTIVE":
                self._say("warning", port.name, f"cannot be used from here: {port.why}")
            elif not port.why:
                self._say_gids(port)
        if any(not port.why for port in self._host.ports) and not self._host.locks_enough:
            size = f"{(self._host.memlock or 0) // 1024} KiB"
            self._say(
                "error", "memlock", f"only {size} of memory may be locked: NCCL will fail to register its buffers",
                "ulimit -l unlimited; in a pod: the runtime's LimitMEMLOCK, or IPC_LOCK where ranks run as root",
            )  # fmt: skip

    def _say_gids(self, port: Port) -> None:
        right = right_gids(port)
        ipv4 = [gid for gid in right if gid.is_ipv4]
        if right and not any(gid.is_routable for gid in right):
            self._say("warning", port.name, "it has link-local GIDs alone: nobody beyond its own link is reached")
        if len(ipv4) > 1 and not self._settings.get(RANGE):
            several = ", ".join(f"{gid.address} (index {gid.index})" for gid in ipv4)
            self._say(
                "note", port.name, f"it has {len(ipv4)} RoCE v2 addresses, of which NCCL takes the first: {several}",
                f"{RANGE}=NETWORK/BITS in the spec's env chooses another, the same on all nodes",
            )  # fmt: skip

    def _say_settings(self) -> None:
        """What somebody set and most likely did not mean."""
        text = self._settings.get(HCA) or ""
        hcas = HcaList(text, self._version)
        names = {port.device for port in self._host.ports}
        if any(entry[:1] in ("^", "=") for entry, _ in hcas.entries):
            self._say("error", HCA, f"{text!r}: ^ and = count at its very beginning only", "write ^=a,b or =a,b")
        elif text and not hcas.is_exact:
            for name in sorted({name for name, _ in hcas.entries} & names):
                more = sorted(other for other in names if other.startswith(name) and other != name)
                if more:
                    self._say(
                        "warning", HCA, f"{name} is a prefix, and means {', '.join(more)} too",
                        "begin the list with = (after ^, if any)",
                    )  # fmt: skip
        if self._settings.get(INDEX) and self._version >= CHOOSES_GIDS:
            self._say(
                "note", INDEX, f"{self._settings.source[INDEX]} sets it; NCCL finds the index itself since 2.21",
                "unset it",
            )  # fmt: skip
        allowed = self._settings.get(RANGE)
        if allowed and wanted_range(self._settings) is None:
            self._say(
                "error", RANGE, f"{allowed!r} is no {wanted_family(self._settings)} network: NCCL ignores it",
                "write NETWORK/BITS, with NCCL_IB_ADDR_FAMILY=AF_INET6 for IPv6",
            )  # fmt: skip
        given = self._settings.get("NCCL_SOCKET_IFNAME")
        if given and not socket_netdevs(self._host, self._version, self._settings):
            have = ", ".join(netdev.name for netdev in self._host.netdevs)
            self._say("error", "NCCL_SOCKET_IFNAME", f"no netdev here is {given}; there are {have}", "unset it")

    def _leave_sockets(self) -> None:
        if not self._settings.get("NCCL_SOCKET_IFNAME"):
            taken = ", ".join(socket_netdevs(self._host, self._version, self._settings)) or "none"
            self._leave.append(("NCCL_SOCKET_IFNAME", f"NCCL finds a netdev itself: {taken}"))

    def _remedy(self) -> Dict[str, str]:
        """The first remedy with which NCCL, by the model, takes the right ports and on each a right GID."""
        wanted = self._wanted()
        if not wanted:
            return {}
        for remedy in self._remedies(wanted):
            if self._is_right(remedy, wanted):
                self._say_remedy(remedy)
                return remedy
        for remedy, fewer in self._fewer(wanted):
            if self._is_right(remedy, fewer):
                out = ", ".join(port.name for port in sorted(set(wanted) - set(fewer), key=by_name))
                self._say(
                    "warning", out, f"NCCL {shown(self._version)} is not given it: no one setting suits all devices",
                    "" if self._version >= CHOOSES_GIDS else "NCCL 2.21 or newer chooses an index for each",
                )  # fmt: skip
                return remedy
        self._say_wrong(wanted)
        return {}

    def _without(self) -> Dict[str, str]:
        """Where no port works, and NCCL would open one all the same and end with an error: TCP, said aloud."""
        if any(not port.why for port in self._host.ports):
            return {}
        if not choose(self._host, self._version, self._settings).chosen:
            return {}
        self._say("warning", "RDMA", "no device can be used from here, though NCCL would try: TCP on this node")
        return {"NCCL_IB_DISABLE": "1"}

    def _wanted(self) -> Tuple[Port, ...]:
        """The ports that training should use, of those that somebody's own NCCL_IB_HCA allows."""
        best, out = best_ports([port for port in self._host.ports if not port.why])
        if self._settings.get(HCA):
            hcas = HcaList(self._settings.get(HCA) or "", self._version)
            allowed = tuple(port for port in self._host.ports if not port.why and hcas.takes(port))
            if not allowed:
                what = f"{self._settings.get(HCA)!r} matches no usable device: NCCL takes TCP without a word"
                self._say("error", HCA, what, f"this node has {', '.join(port.name for port in best) or 'none'}")
            return allowed
        for port, why in out:
            self._say("note", port.name, why)
        return best

    def _remedies(self, wanted: Tuple[Port, ...]) -> Iterator[Dict[str, str]]:
        """From the least to the most. What somebody has set himself is never among it."""
        devices = {HCA: exactly(wanted, self._host)}
        gids = [{}, {FAMILY: "AF_INET6"}, *ranges(wanted)]  # type: List[Dict[str, str]]
        for remedy in (*gids, *({**devices, **gid} for gid in gids)):
            if self._free(remedy):
                yield remedy
        for index in sorted(common_indexes(wanted)):
            for more in ({}, devices):  # type: Dict[str, str]
                if self._free({INDEX: "", **more}):
                    yield {**more, INDEX: str(index)}

    def _fewer(self, wanted: Tuple[Port, ...]) -> Iterator[Tuple[Dict[str, str], Tuple[Port, ...]]]:
        """Parts of the ports that one setting suits, the fastest part first."""
        parts: List[Tuple[Dict[str, str], Tuple[Port, ...]]] = [
            ({}, having(wanted, lambda gid: gid.is_ipv4)),
            ({FAMILY: "AF_INET6"}, having(wanted, lambda gid: not gid.is_ipv4)),
        ]
        for index in sorted({gid.index for port in wanted for gid in right_gids(port)}):
            parts.append(({INDEX: str(index)}, having(wanted, partial(_is_at, index))))
        parts.sort(key=lambda part: -sum(port.rate or 1 for port in part[1]))
        for gids, ports in parts:
            for more in ({}, gids):  # type: Dict[str, str]
                remedy = {HCA: exactly(ports, self._host), **more}
                if ports and self._free(remedy):
                    yield remedy, ports

    def _free(self, remedy: Dict[str, str]) -> bool:
        return not any(self._settings.get(name) for name in remedy)

    def _is_right(self, remedy: Dict[str, str], wanted: Tuple[Port, ...]) -> bool:
        choice = choose(self._host, self._version, self._settings.with_(remedy))
        return {one.port for one in choice.chosen} == set(wanted) and not any(
            one.error or one.gid_index not in right_indexes(one.port) for one in choice.chosen
        )

    def _say_remedy(self, remedy: Dict[str, str]) -> None:
        choice = choose(self._host, self._version, self._settings.with_(remedy))
        version = shown(self._version)
        for name in (HCA, INDEX):
            if name not in remedy and not self._settings.get(name):
                what = "takes the right devices" if name == HCA else "finds the right GIDs"
                self._leave.append((name, f"NCCL {version} {what} without it: {_chosen(choice, name)}"))
        if INDEX in remedy and self._version >= CHOOSES_GIDS:
            self._say(
                "note", INDEX, f"NCCL {version} cannot be led to the right GID otherwise; valid on this node only"
            )

    def _say_wrong(self, wanted: Tuple[Port, ...]) -> None:
        choice = choose(self._host, self._version, self._settings)
        for one in choice.chosen:
            if one.error:
                self._say("error", one.port.name, f"NCCL {shown(self._version)} ends here: {one.error}")
            elif one.port in wanted and one.gid_index not in right_indexes(one.port):
                better = ", ".join(f"{gid.index} ({gid.address})" for gid in right_gids(one.port)) or "none"
                given = self._settings.get(INDEX)
                self._say(
                    "error", one.port.name, f"NCCL will use GID index {one.gid_index}; right is {better}",
                    f"{self._settings.source[INDEX]} sets {INDEX}={given}; unset it" if given else "",
                )  # fmt: skip


def _is_at(index: int, gid: Gid) -> bool:
    return gid.index == index


def _chosen(choice: Choice, name: str) -> str:
    roce = [one for one in choice.chosen if one.port.link_layer == "Ethernet"]
    if name == INDEX:
        return ", ".join(f"{one.gid_index} on {one.port.name}" for one in roce) or choice.why
    return ", ".join(one.port.name for one in choice.chosen) or choice.why
