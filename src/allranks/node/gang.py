"""What every agent of a run is told: the plan, as a value."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Tuple

from allranks.node.pod import Pod


@dataclass(frozen=True)
class Gang:
    """One run's plan. Times are seconds; ``restarts`` is how often a broken gang may start again.

    ``final`` are exit codes by which a rank says that no restart would mend it. ``needs`` are modules that the ranks'
    Python must have, looked for before anything starts, and ``to_have_them`` what to do where it lacks some.

    ``state`` is the directory that holds the record of the run, ``cache`` the one for what is worth keeping
    beyond it: lists of modules to import before ranks are forked, and their compiled code. ``addresses`` are the
    nodes' own addresses where the engine knows them beforehand. An agent sends a heartbeat every ``heartbeat``
    seconds; one that is silent for ``lease`` is lost. A log file holds at most ``log_limit`` bytes.
    ``secret`` is where an engine has mounted the run's secret, if not beside the plan.
    ``identity`` is the engine by whose variables an agent finds its place, where that is not ``engine`` itself: then
    ``pods`` say what each node of this machine pretends to be.
    ``rdma`` is what the spec asks of the network (auto, required, off), and empty where nothing is decided about it; a
    node reads its network's files below its own one of ``fabric_roots``, or below / where there are none. ``network``
    is what an agent has decided to set on its own node, and is in no plan; nor is ``nccl_lines``, whether NCCL is made
    to say which way it takes.
    ``hosts`` are the names by which nodes of other machines find each other, where mpirun must know them all.
    With ``preflight`` all nodes and the ways between them are checked before user code starts; ``gpus`` is how many
    each must have. With ``force_delete`` the agents may have a lost node's pods given up (``free.py``), and the gang
    keeps a ledger (``keeper.py``).
    With ``closes`` node 0 ends after all others, and its exit code alone says how the run ended: the engine takes
    that of any node for it, and deletes what still runs then, with its logs.
    Rank 0 of one that ``serves`` is to go on until it is ended.
    A gang that ``stays`` is idle until it is given a command, and again after it; ``argv`` is then only what its
    zygotes are made ready for. ``first_attempt`` is that of the command that ``argv`` is.
    """

    run: str
    engine: str
    version: str
    nodes: int
    ranks_per_node: int
    launcher: str
    argv: Tuple[str, ...]
    workdir: str
    coordinator: str
    state: str
    cache: str = ""
    port: int = 0
    addresses: Tuple[str, ...] = ()
    hosts: Tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    serves: bool = False
    stays: bool = False
    restarts: int = 0
    final: Tuple[int, ...] = ()
    needs: Tuple[str, ...] = ()
    to_have_them: str = ""
    first_attempt: int = 0
    start_timeout: float = 600.0
    hang_timeout: float = 900.0
    grace: float = 30.0
    deadline: Optional[float] = None
    log_limit: int = 2**30
    heartbeat: float = 1.0
    lease: float = 5.0
    identity: str = ""
    pods: Tuple[Pod, ...] = ()
    rdma: str = ""
    fabric_roots: Tuple[str, ...] = ()
    network: Mapping[str, str] = field(default_factory=dict)
    nccl_lines: bool = False
    termination: str = ""
    secret: str = ""
    preflight: bool = False
    gpus: int = 0
    force_delete: bool = False
    closes: bool = False

    @property
    def learned(self) -> str:
        """The directory that holds the lists of modules."""
        return os.path.join(self.cache, "preload")

    @property
    def bytecode(self) -> str:
        """The directory that holds their compiled code."""
        return os.path.join(self.cache, "bytecode")

    @property
    def ranks_on_node(self) -> int:
        """Ranks that one node holds; the launcher ``once`` has a single process a node."""
        return 1 if self.launcher == "once" else self.ranks_per_node

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_on_node

    def node_of(self, rank: int) -> int:
        return rank // self.ranks_on_node

    def ranks_of(self, node: int) -> range:
        return range(node * self.ranks_on_node, (node + 1) * self.ranks_on_node)

    def name_of(self, node: int) -> str:
        return self.pods[node].hostname if self.pods else f"{self.run}-{node}"

    def root_of(self, node: int) -> str:
        """The folder that stands for a pretended pod's root."""
        return os.path.join(self.state, "pods", self.name_of(node))

    def fabric_root_of(self, node: int) -> str:
        """Below which that node reads its network's files."""
        return self.fabric_roots[node] if self.fabric_roots else "/"

    def termination_of(self, node: int) -> str:
        """Where that node leaves the record; empty where it leaves none."""
        return self.root_of(node) + self.termination if self.pods and self.termination else self.termination

    def address_of(self, name: str) -> str:
        """What the cluster's DNS would answer, for the name of a pretended pod; any other name as it is."""
        for pod, address in zip(self.pods, self.addresses):
            if name in pod.names:
                return address
        return name

    def log_of(self, attempt: int, rank: int) -> str:
        return os.path.join(self.state, "logs", f"attempt-{attempt}", f"rank-{rank}.log")

    def launcher_log_of(self, attempt: int, node: int) -> str:
        return os.path.join(self.state, "logs", f"attempt-{attempt}", f"node-{node}.log")

    def nccl_folder(self, attempt: int, node: int) -> str:
        """Where NCCL of that node's ranks says which way it takes."""
        return os.path.join(self.state, "nccl", f"attempt-{attempt}", f"node-{node}")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Gang:
        fields: Dict[str, Any] = dict(data)
        for name in ("argv", "addresses", "hosts", "fabric_roots", "final", "needs"):
            fields[name] = tuple(fields.get(name, ()))
        fields["pods"] = tuple(Pod.from_json(pod) for pod in fields.get("pods", ()))
        return cls(**fields)


def load(path: str) -> Gang:
    """Read a plan as an engine wrote it."""
    with open(path, encoding="utf-8") as file:
        return Gang.from_json(json.load(file))


def read_secret(state: str) -> bytes:
    """The run's secret, known to its agents alone."""
    with open(os.path.join(state, "secret"), "rb") as file:
        return file.read().strip()
