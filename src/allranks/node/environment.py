"""The rank environment: the same names, with the same meaning, on every engine and under every launcher."""

from __future__ import annotations

import os
import re
from typing import Dict, List, Mapping, Optional

from allranks.node.gang import Gang

IDENTITY = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "LOCAL_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "ALLRANKS_RUN", "ALLRANKS_NODE", "ALLRANKS_NODES", "ALLRANKS_ATTEMPT",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
)  # fmt: skip

SOMEBODY_ELSES = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|NODE_RANK|LOCAL_SIZE|MASTER_(ADDR|PORT)"
    r"|PET_\w+|TORCHELASTIC_\w+|ALLRANKS_(RUN|NODE|NODES|ATTEMPT|COORDINATOR|ROOT|RESTART)"
    r"|(OMPI_COMM_WORLD|PMI|PMIX|MPI_LOCAL)\w*|SLURM_(PROCID|LOCALID|NODEID)"
    r"|OMPI_(UNIVERSE_SIZE|NUM_APP_CTX|FIRST_RANKS|APP_CTX_NUM_PROCS|FILE_LOCATION|COMMAND|ARGV)"
    r"|OMPI_MCA_(ess\w*|pmix|num_procs|initial_wdir|orte_(app_num|ess_\w+|hnp_uri|launch|\w+_uri|num_nodes|\w+_dir))"
)
"""Variables by which a launcher or an operator tells a process who it is.

One left over would give every rank the same name, or the name of its pod.
"""


def clean(env: Mapping[str, str]) -> Dict[str, str]:
    """The environment without anybody's identity."""
    return {name: value for name, value in env.items() if not SOMEBODY_ELSES.fullmatch(name)}


def rank_environment(gang: Gang, rank: int, attempt: int, address: str, port: int) -> Dict[str, str]:
    """Who rank ``rank`` is in this attempt, and where rank 0's store listens.

    LOCAL_SIZE is what DeepSpeed's CPU kernels read in C. The TORCHELASTIC names let Lightning, accelerate and
    torch itself see that a launcher made these processes; ``TORCHELASTIC_USE_AGENT_STORE`` is left out on purpose,
    so that rank 0 hosts its own store and nothing of an earlier attempt is shared.
    """
    node, local_rank = divmod(rank, gang.ranks_on_node)
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(gang.world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(gang.ranks_on_node),
        "LOCAL_SIZE": str(gang.ranks_on_node),
        "NODE_RANK": str(node),
        "GROUP_RANK": str(node),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": gang.run,
        "TORCHELASTIC_RESTART_COUNT": str(attempt - gang.first_attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(gang.restarts),
        **node_environment(gang, node, attempt),
        **_own_devices(gang, node),
    }


def node_environment(gang: Gang, node: int, attempt: int) -> Dict[str, str]:
    """What all ranks of one node share: what was decided for its network, and of its pretended pod all but identity."""
    pod = gang.pods[node].environment(gang.root_of(node)) if gang.pods else {}
    return {
        **clean(pod),
        **gang.network,
        **_nccl_lines(gang, node, attempt),
        "ALLRANKS_RUN": gang.run,
        "ALLRANKS_NODE": str(node),
        "ALLRANKS_NODES": str(gang.nodes),
        "ALLRANKS_ATTEMPT": str(attempt),
    }


def _nccl_lines(gang: Gang, node: int, attempt: int) -> Dict[str, str]:
    """NCCL says into files of ours which way it takes (``proof.py``), unless the user has it say something himself."""
    if not gang.nccl_lines:
        return {}
    file = os.path.join(gang.nccl_folder(attempt, node), "%p")
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": file}


def shell_environment(gang: Gang, node: int, attempt: int, inherited: Mapping[str, str]) -> Dict[str, str]:
    """What a shell on a node has: the ranks' surroundings and the node's identity, but no rank's.

    With RANK, WORLD_SIZE and MASTER_PORT set, any script started in the shell would wait for ranks that nobody starts,
    or walk in among those that run.
    """
    return {
        **base_environment(gang, inherited),
        "LOCAL_WORLD_SIZE": str(gang.ranks_on_node),
        "NODE_RANK": str(node),
        "GROUP_RANK": str(node),
        "MASTER_ADDR": gang.coordinator,
        **node_environment(gang, node, attempt),
        **_own_devices(gang, node),
    }


def _own_devices(gang: Gang, node: int) -> Dict[str, str]:
    """On this machine the nodes share its GPUs: each gets its own, where there is one for every rank."""
    devices = visible_devices(gang.env.get("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES")))
    if gang.engine != "local" or gang.nodes == 1 or len(devices) < gang.world_size:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices[rank] for rank in gang.ranks_of(node))}


def visible_devices(listed: Optional[str]) -> List[str]:
    """The GPUs that CUDA_VISIBLE_DEVICES lists, or all of this machine's when it is not set."""
    if listed is not None:
        return [device for device in listed.split(",") if device]
    count = sum(name[6:].isdigit() for name in os.listdir("/dev") if name.startswith("nvidia"))
    return [str(number) for number in range(count)]


def base_environment(gang: Gang, inherited: Mapping[str, str]) -> Dict[str, str]:
    """What every rank gets beside its identity: the surroundings, the spec's ``env``, and three defaults.

    One OpenMP thread where several ranks share a node (as torchrun does), unbuffered output (else the last words
    of a killed rank are lost), and on this machine alone gloo and NCCL meet on the loopback device.
    """
    env = clean(inherited)
    env.update(gang.env)
    if gang.ranks_on_node > 1:
        env.setdefault("OMP_NUM_THREADS", "1")
    env.setdefault("PYTHONUNBUFFERED", "1")
    if gang.engine == "local":
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")
        env.setdefault("NCCL_SOCKET_IFNAME", "lo")
    return env
